//! libFuzzer's entry to [`mmtls_fuzz::packet_path`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::packet_path(data));
