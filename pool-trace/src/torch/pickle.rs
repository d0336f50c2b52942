//! Reads a pickle of plain values: dicts, lists, tuples, numbers and text.
//!
//! Snapshots share frames between their entries, and a shared value stays one value here: values
//! are numbered, and containers hold numbers. So nothing is copied and nothing recurses, however a
//! pickle nests or refers to itself. A pickle that names a class or a function is refused.
//!
//! A reference to a list has two bytes, so lists of lists can have more entries in all than any
//! memory holds. [`Value::list`] counts what it hands out, up to the bytes of the file: an entry that
//! is written out has more than ten. A dict keeps only its [`FIELDS`], so a field is found soon
//! however many keys a dict has and however often it is referred to.

mod machine;

use crate::malformed::Malformed;
use machine::{Fault, Machine};
use std::cell::Cell;

const EXPECTED: &str =
    "a snapshot of torch.cuda.memory: a pickle of dicts, lists, numbers and text";

/// The fields of a snapshot that [`read`](super::read) looks at.
const FIELDS: [&str; 12] = [
    "action",
    "addr",
    "address",
    "blocks",
    "device",
    "device_traces",
    "requested_size",
    "segments",
    "size",
    "state",
    "stream",
    "time_us",
];

/// The values of a pickle.
#[derive(Debug)]
pub(super) struct Pickle<'p> {
    nodes: Vec<Node<'p>>,
    root: usize,
    /// Entries of lists that may be handed out in all: an entry of a real snapshot has more than ten bytes,
    /// a reference to one has two.
    entries_most: usize,
    /// Entries of lists that may still be handed out.
    entries_left: Cell<usize>,
}

#[derive(Debug)]
enum Node<'p> {
    Absent,
    /// `None` for a number that is negative or above 2^64.
    Int(Option<u64>),
    Text(&'p str),
    /// A list, a tuple or a set.
    List(Vec<usize>),
    /// The values of those keys that are [`FIELDS`], by their places there.
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
        let entries_most = bytes.len() / 2;
        Ok(Self { nodes, root, entries_most, entries_left: Cell::new(entries_most) })
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

    /// Returns the members of a list or tuple. Refuses a list after which those that were asked for
    /// have more entries than one for two bytes of the file.
    pub(super) fn list(
        self,
        what: &str,
    ) -> Result<impl ExactSizeIterator<Item = Value<'v>>, Malformed> {
        match &self.pickle.nodes[self.node] {
            Node::List(list) => {
                let most = self.pickle.entries_most;
                let left = self.pickle.entries_left.get().checked_sub(list.len());
                self.pickle.entries_left.set(left.ok_or_else(|| {
                    let found = format!("{what}: lists of more than {most} entries in all");
                    Malformed::new(found, format!("at most {most}, one for two bytes of the file"))
                })?);
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
        let at = FIELDS.iter().position(|field| *field == name);
        debug_assert!(at.is_some(), "`{name}` is a field that dicts keep");
        let field = fields.iter().find(|(field, _)| Some(*field) == at);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds a short text, which is kept under the next number.
    fn push_text(pickle: &mut Vec<u8>, text: &str) {
        pickle.extend([0x8c, u8::try_from(text.len()).unwrap()]);
        pickle.extend(text.bytes().chain([0x94]));
    }

    #[test]
    fn a_dict_keeps_the_last_value_of_each_field_and_nothing_else() {
        let mut bytes = b"\x80\x04}(".to_vec();
        for round in 0..100 {
            for name in FIELDS.into_iter().chain(["frames", "category"]) {
                push_text(&mut bytes, name);
                bytes.extend([b'K', round]);
            }
        }
        bytes.extend(b"u.");
        let pickle = Pickle::read(&bytes).unwrap();
        let Node::Dict(fields) = &pickle.nodes[pickle.root] else { unreachable!("a dict") };
        assert_eq!(fields.len(), FIELDS.len(), "of 1400 keys");
        for name in FIELDS {
            assert_eq!(pickle.root().number_or(name, 0).unwrap(), 99, "{name}");
        }
    }

    #[test]
    fn entries_are_counted_each_time_that_a_list_is_handed_out() {
        let bytes = b"\x80\x02](NNNNNe.";
        let pickle = Pickle::read(bytes).unwrap();
        for _ in 0..bytes.len() / 2 / 5 {
            assert_eq!(pickle.root().list("a list").unwrap().len(), 5);
        }
        let error = pickle.root().list("a list").err().unwrap().to_string();
        assert!(error.starts_with("a list: lists of more than 5 entries in all"), "{error}");
    }
}
