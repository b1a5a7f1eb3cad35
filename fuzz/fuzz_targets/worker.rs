//! libFuzzer's entry to [`mmtls_fuzz::worker`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::worker(data));
