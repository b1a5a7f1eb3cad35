//! libFuzzer's entry to [`mmtls_fuzz::websocket`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::websocket(data));
