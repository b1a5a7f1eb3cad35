//! Nothing: cargo wants a target beside a dependency.
