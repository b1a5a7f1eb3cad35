//! Private-tag suites and key sharing in rustls programs, with rustls and other stacks as peers.

mod common;
mod compromised;
mod other_stacks;
mod private_tag_openssl;
mod rustls;
mod sharing;
