//! libFuzzer's entry to [`mmtls_fuzz::codings`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::codings(data));
