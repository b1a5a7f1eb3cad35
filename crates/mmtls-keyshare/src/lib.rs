//! The key-sharing channel of mmTLS: messages, client, server.
