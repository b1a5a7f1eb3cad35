//! libFuzzer's entry to [`mmtls_fuzz::openings`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::openings(data));
