//! A table of streams by their handles, which is read without a lock.

use crate::events::PoolStream;
use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::Arc;

/// Read by each call that names a handle, and written anew when a stream is registered or ends: a program has few.
#[derive(Debug, Default)]
pub(crate) struct Handles(ArcSwap<HashMap<usize, Handle>>);

#[derive(Clone, Debug)]
struct Handle {
    /// The driver's number of the stream, if it numbers them. A later stream may have the handle, and has another
    /// number.
    number: Option<u64>,
    on: PoolStream,
}

impl Handles {
    /// The registration of the stream that has this handle and number.
    #[inline]
    pub(crate) fn get(&self, handle: usize, number: Option<u64>) -> Option<PoolStream> {
        let table = self.0.load();
        table.get(&handle).filter(|known| known.number == number).map(|known| known.on.clone())
    }

    /// The registration of the last stream that had this handle.
    pub(crate) fn last(&self, handle: usize) -> Option<PoolStream> {
        self.0.load().get(&handle).map(|known| known.on.clone())
    }

    /// The registration of an earlier stream that had this handle: it has another number.
    pub(crate) fn earlier(&self, handle: usize, number: Option<u64>) -> Option<PoolStream> {
        let table = self.0.load();
        table.get(&handle).filter(|known| known.number != number).map(|known| known.on.clone())
    }

    pub(crate) fn insert(&self, handle: usize, number: Option<u64>, on: &PoolStream) {
        self.change(|table| drop(table.insert(handle, Handle { number, on: on.clone() })));
    }

    /// Forgets a stream.
    pub(crate) fn remove(&self, on: &PoolStream) {
        if self.0.load().values().any(|known| is_same(&known.on, on)) {
            self.change(|table| table.retain(|_, known| !is_same(&known.on, on)));
        }
    }

    fn change(&self, change: impl Fn(&mut HashMap<usize, Handle>)) {
        self.0.rcu(|table| {
            let mut table = HashMap::clone(table);
            change(&mut table);
            Arc::new(table)
        });
    }
}

/// Whether two are one registration.
fn is_same(a: &PoolStream, b: &PoolStream) -> bool {
    std::ptr::eq(a.raw(), b.raw())
}
