//! TLS record protection and key schedules for mmTLS.
