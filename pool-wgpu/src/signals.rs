//! Learns that commands were submitted which the program submits by itself.
//!
//! wgpu has no callback for a submission. But it maps a buffer after the submission that asks for
//! it, at the next poll or submission of any thread if no commands use the buffer. So a word that
//! no commands use is mapped after the program's commands, and its arrival tells that they were
//! submitted, long before they are done.
//!
//! A poll collects the callbacks that are due and then calls them one after the other, so that one may
//! come late, or after the caller's own. The word shows that it is mapped before: [`Signals::look`].

use crate::open::OpenScopes;
use crate::shared::Shared;
use parking_lot::Mutex;
use pool_core::DeviceError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use wgpu::{
    Buffer, BufferAsyncError, BufferDescriptor, BufferUsages, CommandEncoder, MAP_ALIGNMENT,
    MapMode,
};

/// The words of one device.
#[derive(Default)]
pub(crate) struct Signals(Mutex<Words>);

#[derive(Default)]
struct Words {
    idle: Vec<Buffer>,
    /// By scope, and whether it is the scope's prologue or the program's commands.
    asked: BTreeMap<(u64, bool), Asked>,
}

/// What is known of a part of a scope until the scope is closed.
enum Asked {
    /// This word is to be mapped.
    Word(Buffer),
    /// Its callback came: whether it was submitted.
    Came(bool),
}

impl Asked {
    fn is_submitted(&self) -> bool {
        match self {
            Self::Word(word) => word.get_mapped_range(..).is_ok(),
            Self::Came(submitted) => *submitted,
        }
    }
}

/// The end of a scope that was handed over: once its prologue and the program's commands are both
/// submitted or dropped. Callbacks hold it, which must keep neither the device nor a buffer.
struct Ending {
    signals: Weak<Signals>,
    shared: Weak<Shared>,
    open: Weak<OpenScopes>,
    scope: u64,
    was_prologue_submitted: AtomicBool,
    were_commands_submitted: AtomicBool,
}

/// The prologue of a scope, or the program's commands, until they are submitted or dropped.
struct Half {
    of: Arc<Ending>,
    is_prologue: bool,
    mapped: bool,
    submitted: bool,
}

impl Half {
    fn submitted(&mut self, mapped: bool) {
        (self.submitted, self.mapped) = (true, mapped);
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        match self.is_prologue {
            true => self.of.was_prologue_submitted.store(self.submitted, SeqCst),
            false => self.of.were_commands_submitted.store(self.submitted, SeqCst),
        }
        if let (Some(signals), Some(shared)) = (self.of.signals.upgrade(), self.of.shared.upgrade())
        {
            signals.came(&shared, self);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let (Some(shared), Some(open)) = (self.shared.upgrade(), self.open.upgrade()) else {
            return;
        };
        let prologue = self.was_prologue_submitted.load(SeqCst);
        open.parts_ran(self.scope, (prologue, self.were_commands_submitted.load(SeqCst)));
        // Blocks that the other part would have zeroed or filled are zeroed now.
        open.close(self.scope, &shared);
        if let Some(signals) = self.signals.upgrade() {
            signals.forget(self.scope);
        }
    }
}

impl Signals {
    /// Closes a scope once its prologue, if it has one, and these commands are submitted or dropped.
    pub(crate) fn close_after(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        open: &Arc<OpenScopes>,
        scope: u64,
        (prologue, commands): (Option<&CommandEncoder>, &CommandEncoder),
    ) -> Result<(), DeviceError> {
        let halves = [prologue.map(|prologue| (prologue, true)), Some((commands, false))];
        let halves = halves.into_iter().flatten();
        let halves =
            halves.map(|(commands, is_prologue)| Ok((commands, is_prologue, self.word(shared)?)));
        let halves: Vec<_> = halves.collect::<Result<_, DeviceError>>()?;
        let of = Arc::new(Ending {
            signals: Arc::downgrade(self),
            shared: Arc::downgrade(shared),
            open: Arc::downgrade(open),
            scope,
            was_prologue_submitted: AtomicBool::new(prologue.is_none()),
            were_commands_submitted: AtomicBool::new(false),
        });
        for (commands, is_prologue, word) in halves {
            self.0.lock().asked.insert((scope, is_prologue), Asked::Word(word.clone()));
            let (mapped, submitted) = (false, false);
            let mut half = Half { of: of.clone(), is_prologue, mapped, submitted };
            let came = move |mapped: Result<(), BufferAsyncError>| half.submitted(mapped.is_ok());
            commands.map_buffer_on_submit(&word, MapMode::Read, .., came);
        }
        Ok(())
    }

    /// A word that nothing uses.
    fn word(&self, shared: &Shared) -> Result<Buffer, DeviceError> {
        let idle = self.0.lock().idle.pop();
        match idle {
            Some(word) => Ok(word),
            None => shared.create(&BufferDescriptor {
                label: Some("bucketpool signal"),
                size: MAP_ALIGNMENT,
                usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
        }
    }

    /// Closes a scope whose words are all mapped, so that its prologue and its commands were submitted.
    pub(crate) fn look(&self, open: &OpenScopes, scope: u64) {
        if cfg!(target_family = "wasm") || !open.is_yielded(scope) {
            return; // a browser calls with no other thread in between
        }
        let were_submitted = {
            // No callback unmaps a word that is looked at: it takes the word out first.
            let words = self.0.lock();
            let of = |is_prologue| words.asked.get(&(scope, is_prologue));
            of(false).is_some_and(Asked::is_submitted) && of(true).is_none_or(Asked::is_submitted)
        };
        if were_submitted {
            open.close_submitted(scope);
        }
    }

    fn forget(&self, scope: u64) {
        let mut words = self.0.lock();
        for is_prologue in [true, false] {
            words.asked.remove(&(scope, is_prologue));
        }
    }

    /// A word serves again, unless wgpu refused to map it or to unmap it.
    fn came(&self, shared: &Shared, half: &Half) {
        let came = Asked::Came(half.submitted);
        let asked = self.0.lock().asked.insert((half.of.scope, half.is_prologue), came);
        let Some(Asked::Word(word)) = asked else { return };
        let serves = if half.mapped { shared.unmap(&word) } else { !half.submitted };
        if serves {
            self.0.lock().idle.push(word);
        }
    }
}
