//! Read-only inline TLS monitor: forwards packets, never terminates TLS.
