//! Tags of requests, as small numbers that a record has room for.

use parking_lot::RwLock;

/// A tag. No tag is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tag(u16);

/// The names of all tags of the process.
static NAMES: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

impl Tag {
    /// Returns the tag of a name. From the 65 535th name on, no tag.
    pub(crate) fn new(name: &'static str) -> Self {
        let mut names = NAMES.write();
        let at = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        Self(u16::try_from(at + 1).unwrap_or(0))
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    /// Returns its name; empty for no tag.
    pub(crate) fn name(self) -> &'static str {
        let Some(at) = usize::from(self.0).checked_sub(1) else { return "" };
        NAMES.read().get(at).copied().unwrap_or("")
    }
}

/// Returns the name of the tag with a number
/// ([`PoolEvent::tag_number`](crate::PoolEvent::tag_number)): empty for 0, and for a number that no
/// tag has.
///
/// ```
/// assert_eq!(pool_core::tag_name(0), "");
/// ```
#[must_use]
pub fn tag_name(number: u16) -> &'static str {
    Tag(number).name()
}
