//! The private tag against its specification, and records of real TLS stacks.

mod private_tag;
mod real_stacks;
