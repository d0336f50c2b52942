//! The stack machine that a pickle is a program of (CPython's `Lib/pickletools.py`), for plain
//! values.

use super::{FIELDS, Node};
use std::collections::HashMap;

/// The reason why a pickle is refused.
pub(super) enum Fault {
    Constructs,
    Broken(&'static str),
}

const CUT: Fault = Fault::Broken("the end");
const EMPTY: Fault = Fault::Broken("too few values");

/// The stack machine that a pickle is a program of.
pub(super) struct Machine<'p> {
    rest: &'p [u8],
    nodes: Vec<Node<'p>>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: HashMap<u64, usize>,
}

impl<'p> Machine<'p> {
    /// Runs a pickle. Returns its values and the number of the one that was pickled, or a fault and
    /// the byte where the operation begins.
    pub(super) fn run(bytes: &'p [u8]) -> Result<(Vec<Node<'p>>, usize), (Fault, usize)> {
        let (nodes, stack, marks, memo) = Default::default();
        let mut machine = Self { rest: bytes, nodes, stack, marks, memo };
        loop {
            let at = bytes.len() - machine.rest.len();
            if machine.step().map_err(|fault| (fault, at))? {
                let root = machine.stack.pop().ok_or((EMPTY, at))?;
                return Ok((machine.nodes, root));
            }
        }
    }

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
    fn sized(&mut self, digits: usize) -> Result<&'p [u8], Fault> {
        let count = usize::try_from(self.unsigned(digits)?).map_err(|_| CUT)?;
        self.take(count)
    }

    fn counted(&mut self, digits: usize, kind: &'static str) -> Result<(), Fault> {
        self.sized(digits)?;
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
                let bytes = self.sized(if code == 0x8a { 1 } else { 4 })?;
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
            b'U' | 0x8c => self.sized(1)?,
            0x8d => self.sized(8)?,
            _ => self.sized(4)?,
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
            b'}' | b'd' => {
                let mut fields = Vec::new();
                set(&mut fields, &self.nodes, &members)?;
                self.push(Node::Dict(fields));
            }
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
            (Node::Dict(fields), b's' | b'u') => {
                let mut changed = std::mem::take(fields);
                set(&mut changed, &self.nodes, &added)?;
                self.nodes[to] = Node::Dict(changed);
            }
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

/// Sets the fields of a dict that are [`FIELDS`]: keys and values in turn. The last value of a key
/// wins, as in Python.
fn set(
    fields: &mut Vec<(usize, usize)>,
    nodes: &[Node<'_>],
    members: &[usize],
) -> Result<(), Fault> {
    let (pairs, rest) = members.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Fault::Broken("a key without a value"));
    }
    for [key, value] in pairs {
        let Node::Text(key) = nodes[*key] else { continue };
        let Some(field) = FIELDS.iter().position(|field| *field == key) else { continue };
        match fields.iter_mut().find(|(known, _)| *known == field) {
            Some((_, before)) => *before = *value,
            None => fields.push((field, *value)),
        }
    }
    Ok(())
}
