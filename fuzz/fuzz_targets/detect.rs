//! libFuzzer's entry to [`mmtls_fuzz::detect`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::detect(data));
