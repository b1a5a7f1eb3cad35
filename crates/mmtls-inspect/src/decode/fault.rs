//! What can be wrong with a coded body. Refuses to say why in more words.

/// What is wrong with a coded body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A coding that is not known.
    Unknown,
    /// Not what the coding allows; what came before was decoded.
    Malformed,
    /// It ended inside.
    Truncated,
    /// More than a cap allows.
    OverCap,
    /// Bytes behind the end, which clients pass over.
    TrailingBytes,
    /// gzip of several members or zstd of several frames. All are decoded; some clients stop behind
    /// the first.
    SeveralMembers,
}
