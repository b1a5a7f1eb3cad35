//! libFuzzer's entry to [`mmtls_fuzz::keylog_line`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::keylog_line(data));
