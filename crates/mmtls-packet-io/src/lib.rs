//! Packet input and output of mmTLS: AF_PACKET, capture files, memory.
