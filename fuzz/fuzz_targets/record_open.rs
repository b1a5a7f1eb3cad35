//! libFuzzer's entry to [`mmtls_fuzz::record_open`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::record_open(data));
