//! Reads a pickle of plain values: dicts, lists, tuples, numbers and text.
//!
//! Snapshots share frames between their entries, and a shared value stays one value here: values
//! are numbered, and containers hold numbers. So nothing is copied and nothing recurses, however a
//! pickle nests or refers to itself. A pickle that names a class or a function is refused.

use crate::malformed::Malformed;
use std::collections::HashMap;

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
        let (stack, marks, memo) = Default::default();
        let mut machine = Machine { rest: bytes, nodes: Vec::new(), stack, marks, memo };
        loop {
            let at = bytes.len() - machine.rest.len();
            match machine.step() {
                Ok(false) => {}
                Ok(true) => break,
                Err(Fault::Constructs) => {
                    return Err(Malformed::new(
                        "a pickle that would construct an object",
                        EXPECTED,
                    ));
                }
                Err(Fault::Broken(what)) => {
                    let found = format!("a pickle that cannot be read: {what} at byte {at}");
                    return Err(Malformed::new(found, EXPECTED));
                }
            }
        }
        let root = machine.stack.pop();
        let root = root.ok_or_else(|| Malformed::new("a pickle of nothing", EXPECTED))?;
        Ok(Self { nodes: machine.nodes, root })
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

/// The reason why a pickle is refused.
enum Fault {
    Constructs,
    Broken(&'static str),
}

const CUT: Fault = Fault::Broken("the end");
const EMPTY: Fault = Fault::Broken("too few values");

/// The stack machine that a pickle is a program of.
struct Machine<'p> {
    rest: &'p [u8],
    nodes: Vec<Node<'p>>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u64, usize>,
}

impl<'p> Machine<'p> {
    /// Runs one operation. Returns whether it was the last.
    fn step(&mut self) -> Result<bool, Fault> {
        let code = self.take(1)?[0];
        match code {
            b'.' => return Ok(true),
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.push(Node::Absent),
            0x88 | 0x89 => self.push(Node::Other("a bool")),
            b'G' => self.skip(8, "a float")?,
            b'F' => {
                self.line()?;
                self.push(Node::Other("a float"));
            }
            b'K' | b'M' | b'J' | b'I' | b'L' | 0x8a | 0x8b => self.int(code)?,
            b'S' | b'V' | b'U' | b'T' | b'X' | 0x8c | 0x8d => self.text(code)?,
            b'C' => self.counted(1, "bytes")?,
            b'B' => self.counted(4, "bytes")?,
            0x8e | 0x96 => self.counted(8, "bytes")?,
            b']' | b')' | b'}' | 0x8f | 0x85..=0x87 | b't' | b'l' | b'd' | 0x91 => {
                self.container(code)?;
            }
            b'a' | b'e' | b's' | b'u' | 0x90 => self.add(code)?,
            b'q' | b'r' | b'p' | 0x94 | b'h' | b'j' | b'g' => self.remember(code)?,
            b'0' => drop(self.stack.pop().ok_or(EMPTY)?),
            b'1' => drop(self.since_mark()?),
            b'2' => self.stack.push(*self.stack.last().ok_or(EMPTY)?),
            b'c' | b'i' | b'o' | b'R' | b'b' | b'P' | b'Q' | 0x81..=0x84 | 0x92 | 0x93 => {
                return Err(Fault::Constructs);
            }
            _ => return Err(Fault::Broken("an unknown operation")),
        }
        Ok(false)
    }

    fn push(&mut self, node: Node<'p>) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn take(&mut self, count: usize) -> Result<&'p [u8], Fault> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or(CUT)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn skip(&mut self, count: usize, kind: &'static str) -> Result<(), Fault> {
        self.take(count)?;
        self.push(Node::Other(kind));
        Ok(())
    }

    /// Reads a little-endian number of up to 8 bytes.
    fn unsigned(&mut self, count: usize) -> Result<u64, Fault> {
        let bytes = self.take(count)?;
        Ok(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }

    /// Reads a count of `digits` bytes, and that many bytes.
    fn run(&mut self, digits: usize) -> Result<&'p [u8], Fault> {
        let count = usize::try_from(self.unsigned(digits)?).map_err(|_| CUT)?;
        self.take(count)
    }

    fn counted(&mut self, digits: usize, kind: &'static str) -> Result<(), Fault> {
        self.run(digits)?;
        self.push(Node::Other(kind));
        Ok(())
    }

    fn line(&mut self) -> Result<&'p str, Fault> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or(CUT)?;
        let line = self.take(end)?;
        self.take(1)?;
        std::str::from_utf8(line).map_err(|_| Fault::Broken("text that is not UTF-8"))
    }

    fn int(&mut self, code: u8) -> Result<(), Fault> {
        let number = match code {
            b'K' => Some(self.unsigned(1)?),
            b'M' => Some(self.unsigned(2)?),
            b'J' => Some(self.unsigned(4)?).filter(|number| number >> 31 == 0),
            b'I' | b'L' => self.line()?.trim_end_matches('L').parse().ok(),
            _ => {
                let bytes = self.run(if code == 0x8a { 1 } else { 4 })?;
                let is_negative = bytes.last().is_some_and(|byte| byte >> 7 == 1);
                let rest = bytes.get(8..).unwrap_or_default();
                let fits = !is_negative && rest.iter().all(|byte| *byte == 0);
                let low = bytes.iter().take(8).rev();
                fits.then(|| low.fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
            }
        };
        self.push(Node::Int(number));
        Ok(())
    }

    fn text(&mut self, code: u8) -> Result<(), Fault> {
        let bytes = match code {
            b'S' => self.line()?.trim_matches(['\'', '"']).as_bytes(),
            b'V' => self.line()?.as_bytes(),
            b'U' | 0x8c => self.run(1)?,
            0x8d => self.run(8)?,
            _ => self.run(4)?,
        };
        let text = std::str::from_utf8(bytes);
        self.push(text.map_or(Node::Other("bytes"), Node::Text));
        Ok(())
    }

    fn since_mark(&mut self) -> Result<Vec<usize>, Fault> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or(EMPTY)?;
        Ok(self.stack.split_off(mark))
    }

    fn last(&mut self, count: usize) -> Result<Vec<usize>, Fault> {
        let at = self.stack.len().checked_sub(count).ok_or(EMPTY)?;
        Ok(self.stack.split_off(at))
    }

    fn container(&mut self, code: u8) -> Result<(), Fault> {
        let members = match code {
            b']' | b')' | b'}' | 0x8f => Vec::new(),
            0x85..=0x87 => self.last(usize::from(code - 0x84))?,
            _ => self.since_mark()?,
        };
        match code {
            b'}' | b'd' => self.push(Node::Dict(pairs(&members)?)),
            _ => self.push(Node::List(members)),
        }
        Ok(())
    }

    /// Adds values to the container below them.
    fn add(&mut self, code: u8) -> Result<(), Fault> {
        let added = match code {
            b'a' => self.last(1)?,
            b's' => self.last(2)?,
            _ => self.since_mark()?,
        };
        let to = *self.stack.last().ok_or(EMPTY)?;
        match (&mut self.nodes[to], code) {
            (Node::List(list), b'a' | b'e' | 0x90) => list.extend(added),
            (Node::Dict(fields), b's' | b'u') => fields.extend(pairs(&added)?),
            _ => return Err(Fault::Broken("members of what is no container")),
        }
        Ok(())
    }

    /// Keeps the last value under a number, or takes the one that was kept.
    fn remember(&mut self, code: u8) -> Result<(), Fault> {
        let key = match code {
            b'q' | b'h' => self.unsigned(1)?,
            b'r' | b'j' => self.unsigned(4)?,
            b'p' | b'g' => self.line()?.parse().map_err(|_| Fault::Broken("no number"))?,
            _ => self.memo.len() as u64,
        };
        if matches!(code, b'h' | b'j' | b'g') {
            let node = self.memo.get(&key).ok_or(Fault::Broken("a value that is not kept"))?;
            self.stack.push(*node);
        } else {
            self.memo.insert(key, *self.stack.last().ok_or(EMPTY)?);
        }
        Ok(())
    }
}

fn pairs(members: &[usize]) -> Result<Vec<(usize, usize)>, Fault> {
    let (pairs, rest) = members.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Fault::Broken("a key without a value"));
    }
    Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
}
