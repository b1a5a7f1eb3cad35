//! The cap of both formats.

/// Bytes of the largest record or block.
pub const MAX_BLOCK_BYTES: usize = 16 << 20;
