//! Where frames come in and leave.

/// Names an interface; the caller chooses the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortId(pub u8);
