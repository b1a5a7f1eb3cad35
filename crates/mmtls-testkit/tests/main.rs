//! The testbed itself, and the endpoint that gives its keys away.

mod compromised;
mod testbed;
