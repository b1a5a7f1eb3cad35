//! The private tag's specification, tested: its vectors, also by another implementation in
//! another language, and the paper's construction, which must break.

mod paper;
mod vectors;
