//! libFuzzer's entry to [`mmtls_fuzz::agent_datagram`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mmtls_fuzz::agent_datagram(data));
