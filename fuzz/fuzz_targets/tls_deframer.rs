//! libFuzzer's entry to [`mmtls_fuzz::tls_deframer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::tls_deframer(data));
