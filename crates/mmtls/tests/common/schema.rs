//! `docs/eve.schema.json`: what every line that a test makes mmTLS write must be. The unit tests use this file,
//! too.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
    let text = include_str!("../../../../docs/eve.schema.json");
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
});

/// What the schema has against a line.
pub fn faults(line: &Value) -> Vec<String> {
    let faults = SCHEMA.iter_errors(line);
    faults.map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
}

/// Panics where the schema does not take a line, and says why.
#[track_caller]
pub fn assert_valid(line: &Value) {
    let faults = faults(line);
    assert!(faults.is_empty(), "{faults:#?}\n{line}");
}
