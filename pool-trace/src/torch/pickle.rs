//! Reads a pickle of plain values: dicts, lists, tuples, numbers and text.
//!
//! Snapshots share frames between their entries, and a shared value stays one value here: values
//! are numbered, and containers hold numbers. So nothing is copied and nothing recurses, however a
//! pickle nests or refers to itself. A pickle that names a class or a function is refused.

mod machine;

use crate::malformed::Malformed;
use machine::{Fault, Machine};

const EXPECTED: &str =
    "a snapshot of torch.cuda.memory: a pickle of dicts, lists, numbers and text";

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle<'p> {
    nodes: Vec<Node<'p>>,
    root: usize,
}

#[derive(Debug)]
enum Node<'p> {
    Absent,
    /// `None` for a number that is negative or above 2^64.
    Int(Option<u64>),
    Text(&'p str),
    /// A list, a tuple or a set.
    List(Vec<usize>),
    Dict(Vec<(usize, usize)>),
    /// Something that no field of a snapshot needs, by its name.
    Other(&'static str),
}

/// A value of a pickle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'v> {
    pickle: &'v Pickle<'v>,
    node: usize,
}

impl<'p> Pickle<'p> {
    /// Runs the operations of a pickle, protocols 0 to 5 (CPython's `Lib/pickletools.py`).
    pub(super) fn read(bytes: &'p [u8]) -> Result<Self, Malformed> {
        let (nodes, root) = Machine::run(bytes).map_err(|(fault, at)| {
            let found = match fault {
                Fault::Constructs => "a pickle that would construct an object".to_owned(),
                Fault::Broken(what) => format!("a pickle that cannot be read: {what} at byte {at}"),
            };
            Malformed::new(found, EXPECTED)
        })?;
        Ok(Self { nodes, root })
    }

    /// Returns the value that was pickled.
    pub(super) fn root(&self) -> Value<'_> {
        Value { pickle: self, node: self.root }
    }
}

impl<'v> Value<'v> {
    fn wrong(self, what: &str, expected: &str) -> Malformed {
        let kind = match &self.pickle.nodes[self.node] {
            Node::Absent => "None",
            Node::Int(_) => "an int",
            Node::Text(_) => "text",
            Node::List(_) => "a list",
            Node::Dict(_) => "a dict",
            Node::Other(name) => name,
        };
        Malformed::new(format!("{what} is {kind}"), expected)
    }

    /// Returns the members of a list or tuple.
    pub(super) fn list(
        self,
        what: &str,
    ) -> Result<impl ExactSizeIterator<Item = Value<'v>>, Malformed> {
        match &self.pickle.nodes[self.node] {
            Node::List(list) => {
                Ok(list.iter().map(move |node| Value { pickle: self.pickle, node: *node }))
            }
            _ => Err(self.wrong(what, "a list")),
        }
    }

    /// Returns the text.
    pub(super) fn text(self, what: &str) -> Result<&'v str, Malformed> {
        match &self.pickle.nodes[self.node] {
            Node::Text(text) => Ok(text),
            _ => Err(self.wrong(what, "text")),
        }
    }

    /// Returns a number of bytes, an address, a stream or a time, which are never negative.
    pub(super) fn number(self, what: &str) -> Result<u64, Malformed> {
        match &self.pickle.nodes[self.node] {
            Node::Int(Some(number)) => Ok(*number),
            Node::Int(None) => {
                let found = format!("{what}: a number that is negative or above 2^64");
                Err(Malformed::new(found, "bytes"))
            }
            _ => Err(self.wrong(what, "an int")),
        }
    }

    /// Returns a field of a dict, if there is one of this name.
    pub(super) fn get(self, name: &str, what: &str) -> Result<Option<Value<'v>>, Malformed> {
        let Node::Dict(fields) = &self.pickle.nodes[self.node] else {
            return Err(self.wrong(what, "a dict"));
        };
        let is = |key: usize| matches!(self.pickle.nodes[key], Node::Text(key) if key == name);
        // The last of several wins, as in Python.
        let field = fields.iter().rev().find(|(key, _)| is(*key));
        Ok(field.map(|(_, node)| Value { pickle: self.pickle, node: *node }))
    }

    /// Returns a field of a dict.
    pub(super) fn of(self, name: &str, what: &str) -> Result<Value<'v>, Malformed> {
        let field = self.get(name, what)?;
        field.ok_or_else(|| Malformed::new(format!("{what} has no `{name}`"), format!("`{name}`")))
    }

    /// Returns a field that is a number, or `default` if it is missing or `None`.
    pub(super) fn number_or(self, name: &str, default: u64) -> Result<u64, Malformed> {
        match self.get(name, "a dict")? {
            None => Ok(default),
            Some(value) if matches!(value.pickle.nodes[value.node], Node::Absent) => Ok(default),
            Some(value) => value.number(&format!("`{name}`")),
        }
    }
}
