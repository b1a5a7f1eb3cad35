//! Sans-I/O engine of mmTLS: frames and timestamps in, events and verdicts out.
