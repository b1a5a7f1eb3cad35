//! Workers on real and simulated interfaces, the examples, and the RFC's own sessions.

mod examples;
mod rfc8448;
mod worker;
