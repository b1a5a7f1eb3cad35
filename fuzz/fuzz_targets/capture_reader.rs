//! libFuzzer's entry to [`mmtls_fuzz::capture_reader`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::capture_reader(data));
