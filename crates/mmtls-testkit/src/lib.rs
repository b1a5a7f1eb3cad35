//! Network-namespace testbed of mmTLS (development only).
