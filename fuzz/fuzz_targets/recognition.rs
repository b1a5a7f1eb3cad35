//! libFuzzer's entry to [`mmtls_fuzz::recognition`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::recognition(data));
