//! libFuzzer's entry to [`mmtls_fuzz::key_message`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::key_message(data));
