//! Bounds on a pickle, checked before it is read. The reader of pickles copies a value for each
//! reference to it, and calls itself for each level, so a small file could need all memory or the
//! whole stack.

/// Levels of containers: a snapshot has about ten.
const DEPTH_MOST: u32 = 100;
/// Values, when each reference is a copy: some gigabytes of memory.
const VALUES_MOST: u64 = 1 << 26;
/// The node of every value that is no container.
const ATOM: u32 = 0;

/// Returns what is wrong with the nesting of a pickle. A pickle that is broken, or that holds
/// anything but plain values, is left to the reader.
pub(super) fn excess(pickle: &[u8]) -> Option<String> {
    let mut shape = Shape { containers: vec![Vec::new()], ..Shape::default() };
    let mut rest = Rest(pickle);
    while let Some(code) = rest.byte() {
        if code == b'.' {
            return shape.excess();
        }
        shape.apply(code, &mut rest)?;
    }
    None
}

/// The bytes that are not looked at yet.
struct Rest<'p>(&'p [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn skip(&mut self, bytes: u64) -> Option<()> {
        self.0 = self.0.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    /// A little-endian number of `bytes` bytes.
    fn number(&mut self, bytes: u32) -> Option<u64> {
        (0..bytes).try_fold(0, |sum, at| Some(sum | u64::from(self.byte()?) << (8 * at)))
    }

    fn line(&mut self) -> Option<&str> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        std::str::from_utf8(line).ok()
    }
}

/// The containers of a pickle, and the stack machine that builds them.
#[derive(Default)]
struct Shape {
    /// The members of each container.
    containers: Vec<Vec<u32>>,
    stack: Vec<u32>,
    marks: Vec<usize>,
    memo: std::collections::HashMap<u64, u32>,
}

impl Shape {
    /// Follows one operation of the pickle machine (CPython's `Lib/pickletools.py`).
    fn apply(&mut self, code: u8, rest: &mut Rest<'_>) -> Option<()> {
        match code {
            0x80 => rest.skip(1)?,
            0x95 => rest.skip(8)?,
            b'(' => self.marks.push(self.stack.len()),
            b'N' | 0x88 | 0x89 => self.stack.push(ATOM),
            b'I' | b'L' | b'F' | b'S' | b'V' => {
                rest.line()?;
                self.stack.push(ATOM);
            }
            b'K' | b'M' | b'J' | b'G' => {
                rest.skip(match code {
                    b'K' => 1,
                    b'M' => 2,
                    b'J' => 4,
                    _ => 8,
                })?;
                self.stack.push(ATOM);
            }
            b'U' | b'C' | 0x8a | 0x8c => self.text(rest, 1)?,
            b'T' | b'X' | b'B' | 0x8b => self.text(rest, 4)?,
            0x8d | 0x8e | 0x96 => self.text(rest, 8)?,
            b']' | b')' | b'}' | 0x8f => self.container(0)?,
            0x85 => self.container(1)?,
            0x86 => self.container(2)?,
            0x87 => self.container(3)?,
            b't' | b'l' | b'd' | 0x91 => {
                let count = self.since_mark()?;
                self.container(count)?;
            }
            b'a' => self.add(1)?,
            b's' => self.add(2)?,
            b'e' | b'u' | 0x90 => {
                let count = self.since_mark()?;
                self.add(count)?;
            }
            b'q' => self.put(rest.number(1)?)?,
            b'r' => self.put(rest.number(4)?)?,
            b'p' => self.put(rest.line()?.parse().ok()?)?,
            0x94 => self.put(self.memo.len() as u64)?,
            b'h' => self.get(rest.number(1)?)?,
            b'j' => self.get(rest.number(4)?)?,
            b'g' => self.get(rest.line()?.parse().ok()?)?,
            b'0' => drop(self.stack.pop()?),
            b'1' => {
                let count = self.since_mark()?;
                self.stack.truncate(self.stack.len() - count);
            }
            b'2' => self.stack.push(*self.stack.last()?),
            _ => return None, // names a class or a function, or is unknown
        }
        Some(())
    }

    fn text(&mut self, rest: &mut Rest<'_>, digits: u32) -> Option<()> {
        let bytes = rest.number(digits)?;
        rest.skip(bytes)?;
        self.stack.push(ATOM);
        Some(())
    }

    fn since_mark(&mut self) -> Option<usize> {
        self.stack.len().checked_sub(self.marks.pop()?)
    }

    /// Takes `count` values off the stack. Only containers matter, and that there are values.
    fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        let at = self.stack.len().checked_sub(count)?;
        Some(self.stack.split_off(at))
    }

    fn container(&mut self, count: usize) -> Option<()> {
        let members = self.take(count)?;
        self.stack.push(u32::try_from(self.containers.len()).ok()?);
        self.containers.push(members);
        Some(())
    }

    fn add(&mut self, count: usize) -> Option<()> {
        let members = self.take(count)?;
        let to = *self.stack.last()?;
        if to == ATOM {
            return None;
        }
        self.containers[to as usize].extend(members);
        Some(())
    }

    fn put(&mut self, key: u64) -> Option<()> {
        self.memo.insert(key, *self.stack.last()?);
        Some(())
    }

    fn get(&mut self, key: u64) -> Option<()> {
        self.stack.push(*self.memo.get(&key)?);
        Some(())
    }

    /// Counts levels and values below the last value, in a walk without recursion.
    fn excess(&self) -> Option<String> {
        let root = *self.stack.last()?;
        // Levels and values below each container; 0 levels for one that is not done.
        let mut done = vec![(0_u32, 0_u64); self.containers.len()];
        done[ATOM as usize] = (1, 1);
        let mut is_open = vec![false; self.containers.len()];
        let mut path = vec![(root, 0_usize)];
        while let Some((node, next)) = path.last_mut() {
            let (node, members) = (*node as usize, &self.containers[*node as usize]);
            let member = members.get(*next).map(|member| *member as usize);
            *next += 1;
            if done[node].0 > 0 {
                path.pop();
            } else if let Some(member) = member {
                is_open[node] = true;
                match done[member].0 {
                    0 if is_open[member] => return Some("a container that holds itself".into()),
                    0 => path.push((u32::try_from(member).ok()?, 0)),
                    _ => {}
                }
            } else {
                let parts = members.iter().map(|member| done[*member as usize]);
                let levels = parts.clone().map(|part| part.0).max().unwrap_or(0) + 1;
                let values = parts.fold(1_u64, |sum, part| sum.saturating_add(part.1));
                if levels > DEPTH_MOST {
                    return Some(format!("more than {DEPTH_MOST} levels of containers"));
                }
                if values > VALUES_MOST {
                    return Some(format!("more than {VALUES_MOST} values"));
                }
                done[node] = (levels, values);
                path.pop();
            }
        }
        None
    }
}
