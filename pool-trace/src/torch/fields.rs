//! Reads the fields of a pickle's dicts.

use crate::malformed::Malformed;
use serde_pickle::{HashableValue, Value};
use std::collections::BTreeMap;

type Dict = BTreeMap<HashableValue, Value>;

/// Returns a name of the kind of value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::None => "None",
        Value::Bool(_) => "a bool",
        Value::I64(_) | Value::Int(_) => "an int",
        Value::F64(_) => "a float",
        Value::Bytes(_) => "bytes",
        Value::String(_) => "text",
        Value::List(_) => "a list",
        Value::Tuple(_) => "a tuple",
        Value::Set(_) | Value::FrozenSet(_) => "a set",
        Value::Dict(_) => "a dict",
    }
}

fn wrong(value: &Value, what: &str, expected: &str) -> Malformed {
    Malformed::new(format!("{what} is {}", kind(value)), expected)
}

pub(super) fn dict<'v>(value: &'v Value, what: &str) -> Result<&'v Dict, Malformed> {
    match value {
        Value::Dict(dict) => Ok(dict),
        other => Err(wrong(other, what, "a dict")),
    }
}

pub(super) fn list<'v>(value: &'v Value, what: &str) -> Result<&'v [Value], Malformed> {
    match value {
        Value::List(list) | Value::Tuple(list) => Ok(list),
        other => Err(wrong(other, what, "a list")),
    }
}

pub(super) fn text<'v>(value: &'v Value, what: &str) -> Result<&'v str, Malformed> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(other, what, "text")),
    }
}

/// Returns a number of bytes, an address, a stream or a time, which are never negative.
pub(super) fn number(value: &Value, what: &str) -> Result<u64, Malformed> {
    let number = match value {
        Value::I64(number) => u64::try_from(*number).ok(),
        Value::Int(number) => u64::try_from(number).ok(),
        other => return Err(wrong(other, what, "an int")),
    };
    number.ok_or_else(|| {
        Malformed::new(format!("{what}: a number that is negative or above 2^64"), "bytes")
    })
}

/// Returns a field of a dict.
pub(super) fn of<'v>(dict: &'v Dict, name: &str, what: &str) -> Result<&'v Value, Malformed> {
    let field = dict.get(&HashableValue::String(name.into()));
    field.ok_or_else(|| Malformed::new(format!("{what} has no `{name}`"), format!("`{name}`")))
}

/// Returns a field that is a number, or `default` if it is missing or `None`.
pub(super) fn number_or(dict: &Dict, name: &str, default: u64) -> Result<u64, Malformed> {
    match dict.get(&HashableValue::String(name.into())) {
        None | Some(Value::None) => Ok(default),
        Some(value) => number(value, &format!("`{name}`")),
    }
}
