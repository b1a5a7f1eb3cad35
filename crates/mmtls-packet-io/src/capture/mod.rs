//! Capture files: under construction.
