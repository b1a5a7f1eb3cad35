//! Application-layer inspection for mmTLS: HTTP/1.1 and literal patterns.
