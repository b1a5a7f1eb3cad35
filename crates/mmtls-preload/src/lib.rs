//! LD_PRELOAD library that shares the keys of unmodified OpenSSL programs.
