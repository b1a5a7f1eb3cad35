//! Rules applied to traffic.
//!
//! [`Matcher`] is a set of rules made ready, [`FlowState`] what they know of one connection: bytes, events of
//! the application layer and facts of the handshake go in, matches come out. A match is certain, whatever
//! follows, and does not depend on how the input was cut, but for what is said of [`FlowState::data`].
//! Refuses to do I/O, to know records or packets, to panic on any rule or traffic, and to work or to
//! keep anything without a cap.

mod alphabet;
mod automaton;
mod base64;
mod bestfit;
mod bodies;
mod checks;
mod connection;
mod context;
mod dataset;
mod expression;
mod extent;
mod flow_state;
mod frames;
mod http_head;
#[cfg(feature = "hyperscan")]
mod hyperscan;
mod literal;
mod matcher;
mod memory;
mod message;
mod multipart;
mod number;
mod part_head;
mod pattern;
mod pattern_part;
mod prefilter;
mod search;
mod search_limit;
mod shared;
mod stream;
mod transform;
mod unusable;
mod uri;
mod view;
mod window;

pub use context::{Context, Detected, Facts, Match, Scratch};
pub use dataset::{DatasetFault, DatasetFaultKind, Datasets};
pub use flow_state::FlowState;
pub use matcher::{Matcher, Profile};
pub use search::{Search, SearchError, SearchFault};
pub use shared::Shared;

#[cfg(test)]
mod evasion_http2_tests;
#[cfg(test)]
mod evasion_tests;
#[cfg(test)]
mod expression_tests;
#[cfg(test)]
mod forms_tests;
#[cfg(test)]
mod frames_tests;
#[cfg(test)]
mod half_open_tests;
#[cfg(test)]
mod http_head_caps_tests;
#[cfg(test)]
mod http_head_tests;
#[cfg(test)]
mod lenient_tests;
#[cfg(test)]
mod multipart_tests;
#[cfg(test)]
mod number_tests;
#[cfg(test)]
mod pattern_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod rule_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trailers_tests;
#[cfg(test)]
mod uri_tests;
#[cfg(test)]
mod window_tests;
