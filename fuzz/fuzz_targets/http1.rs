//! libFuzzer's entry to [`mmtls_fuzz::http1`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::http1(data));
