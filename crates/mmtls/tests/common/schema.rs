//! `docs/eve.schema.json`: what every line that a test makes mmTLS write must be. The unit tests use this file,
//! too.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
    let text = include_str!("../../../../docs/eve.schema.json");
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
});

/// Whether the schema takes a line.
pub fn is_valid(line: &Value) -> bool {
    SCHEMA.is_valid(line)
}

/// Panics where the schema does not take a line, and says why.
#[track_caller]
pub fn assert_valid(line: &Value) {
    let faults: Vec<_> = SCHEMA
        .iter_errors(line)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}\n{line}");
}
