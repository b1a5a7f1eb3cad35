//! libFuzzer's entry to [`mmtls_fuzz::http2`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::http2(data));
