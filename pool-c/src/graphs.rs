//! The memory of graphs, by ids that the program chooses: `torch.cuda.graph(.., pool=..)`.

use crate::status::{Failure, Status};
use pool_core::{BucketPool, DeviceAllocator, StreamOf};
use std::ffi::{c_int, c_void};

/// An id of two numbers, as `PyTorch` has it.
pub(crate) type Id = (u64, u64);

/// Which streams are in a capture.
#[derive(Debug)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only device memory has graphs"))]
pub(crate) struct Filter {
    /// Says whether a stream is in the capture. Without it each stream is that the driver says is captured.
    pub(crate) call: FilterCall,
    pub(crate) context: *mut c_void,
    /// Called once when it is not needed any more.
    pub(crate) done: DoneCall,
}

/// Returns for a context and a stream whether that is in a capture; null for each captured stream.
pub type FilterCall = Option<unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int>;

/// Called with a context that is not needed any more; null calls nothing.
pub type DoneCall = Option<unsafe extern "C" fn(*mut c_void)>;

/// The memory of the graphs of a pool.
pub(crate) trait Graphs<A: DeviceAllocator>: Send + Sync {
    fn new() -> Self;

    /// Whether a request may have to come from a graph's memory.
    fn is_any_begun(&self) -> bool;

    /// Has the requests of a stream served by the memory of the capture that it is in, if any.
    fn take_in(&self, on: &StreamOf<A>, handle: usize) -> Result<(), Failure>;

    fn begin(&self, pool: &BucketPool<A>, id: Id, filter: Filter) -> Result<(), Failure>;

    /// `or_later`: whether `close_rest` tries again what is refused now.
    fn end(&self, id: Id, or_later: bool) -> Result<(), Failure>;

    /// As for [`Graphs::end`].
    fn release(&self, id: Id, or_later: bool) -> Result<(), Failure>;

    /// Ends and closes what could not be ended or closed before. Returns whether it has closed any.
    fn close_rest(&self) -> bool;
}

/// A memory without graphs.
pub(crate) struct NoGraphs;

fn none<T>() -> Result<T, Failure> {
    Err(Failure::new(Status::BpUnsupported, "memory of graphs; expected a pool of device memory"))
}

impl<A: DeviceAllocator> Graphs<A> for NoGraphs {
    fn new() -> Self {
        Self
    }
    fn is_any_begun(&self) -> bool {
        false
    }
    fn take_in(&self, _on: &StreamOf<A>, _handle: usize) -> Result<(), Failure> {
        Ok(())
    }
    fn begin(&self, _pool: &BucketPool<A>, _id: Id, filter: Filter) -> Result<(), Failure> {
        drop(filter);
        none()
    }
    fn end(&self, _id: Id, _or_later: bool) -> Result<(), Failure> {
        none()
    }
    fn release(&self, _id: Id, _or_later: bool) -> Result<(), Failure> {
        none()
    }
    fn close_rest(&self) -> bool {
        false
    }
}

#[cfg(feature = "cuda")]
pub(crate) use cuda::CudaGraphs;

mod filter {
    //! The calls of a filter.
    #![expect(unsafe_code, reason = "the program's functions are called")]

    use super::Filter;

    // SAFETY: who begins a capture promises that its filter may be called from any thread.
    unsafe impl Send for Filter {}
    // SAFETY: as above.
    unsafe impl Sync for Filter {}

    impl Filter {
        /// Whether a stream is in the capture, as far as the filter knows.
        #[cfg(feature = "cuda")]
        pub(crate) fn holds(&self, handle: usize) -> bool {
            // SAFETY: who begins a capture promises that the function may be called until it ends.
            self.call.is_none_or(|call| unsafe {
                call(self.context, std::ptr::with_exposed_provenance_mut(handle)) != 0
            })
        }
    }

    impl Drop for Filter {
        fn drop(&mut self) {
            if let Some(done) = self.done {
                // SAFETY: this is its only call, and the filter is not called any more.
                unsafe { done(self.context) }
            }
        }
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    #![expect(unsafe_code, reason = "captured work keeps addresses")]

    use super::{Filter, Graphs, Id};
    use crate::status::{Failure, Status};
    use parking_lot::Mutex;
    use pool_core::{BucketPool, StreamOf};
    use pool_cuda::{GraphPool, PoolStream, Vram};
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// The memory of graphs in a pool of device memory. The program's functions are called without a lock.
    pub(crate) struct CudaGraphs<A: Vram> {
        known: Mutex<HashMap<Id, Graph<A>>>,
        /// Captures that have begun and not ended.
        begun: AtomicUsize,
        /// What the driver has refused, in order.
        refused: Mutex<Vec<(Id, Call)>>,
        /// Released while the driver could not be waited for.
        rest: Mutex<Vec<Arc<GraphPool<A>>>>,
    }

    /// What is tried again.
    #[derive(Clone, Copy)]
    enum Call {
        End,
        Release,
    }

    struct Graph<A: Vram> {
        memory: Arc<GraphPool<A>>,
        /// Captures that have begun and were not released.
        uses: usize,
        /// Those that have not ended.
        going: Vec<Arc<Filter>>,
    }

    fn unknown(id: Id) -> Failure {
        let text = format!("no memory of graphs with the id {id:?}; expected one that has begun");
        Failure::new(Status::BpUnknown, text)
    }

    impl<A: Vram> CudaGraphs<A> {
        /// A stream goes to the captures whose filters say so, before those without a filter.
        fn filters(&self) -> Vec<(Arc<Filter>, Arc<GraphPool<A>>)> {
            let known = self.known.lock();
            let of = |graph: &Graph<A>| {
                graph
                    .going
                    .iter()
                    .map(|filter| (filter.clone(), graph.memory.clone()))
                    .collect::<Vec<_>>()
            };
            let mut filters: Vec<_> = known.values().flat_map(of).collect();
            filters.sort_by_key(|(filter, _)| filter.call.is_none());
            filters
        }

        /// Whether a capture of another id takes all streams.
        fn is_ambiguous(known: &HashMap<Id, Graph<A>>, id: Id, filter: &Filter) -> bool {
            let takes_all =
                |graph: &Graph<A>| graph.going.iter().any(|filter| filter.call.is_none());
            filter.call.is_none()
                && known.iter().any(|(other, graph)| *other != id && takes_all(graph))
        }

        fn end_now(&self, id: Id) -> Result<(), Failure> {
            let ended = {
                let mut known = self.known.lock();
                let graph = known.get_mut(&id).filter(|graph| !graph.going.is_empty());
                let graph = graph.ok_or_else(|| unknown(id))?;
                if graph.going.len() == 1 {
                    graph.memory.end()?;
                }
                self.begun.fetch_sub(1, Relaxed);
                // The oldest: a later capture may have begun where the end of an earlier one was refused.
                graph.going.remove(0)
            };
            drop(ended); // its function is called without the lock
            Ok(())
        }

        fn release_now(&self, id: Id) -> Result<(), Failure> {
            let mut known = self.known.lock();
            let graph = known.get_mut(&id).ok_or_else(|| unknown(id))?;
            if graph.uses == graph.going.len() {
                let text =
                    format!("the graphs of {id:?} are being captured; expected the end first");
                return Err(Failure::new(Status::BpNotSubmitted, text));
            }
            graph.uses -= 1;
            let gone = if graph.uses == 0 { known.remove(&id) } else { None };
            drop(known);
            self.rest.lock().extend(gone.map(|graph| graph.memory));
            Ok(())
        }

        fn call(&self, id: Id, call: Call) -> Result<(), Failure> {
            match call {
                Call::End => self.end_now(id),
                Call::Release => self.release_now(id),
            }
        }

        /// Makes the calls that were refused, in their order.
        fn try_again(&self) {
            let refused = std::mem::take(&mut *self.refused.lock());
            let again: Vec<_> =
                refused.into_iter().filter(|(id, call)| self.call(*id, *call).is_err()).collect();
            self.refused.lock().extend(again);
        }

        /// Calls, notes what is to be tried again, and closes what can be closed.
        fn told(&self, id: Id, call: Call, or_later: bool) -> Result<(), Failure> {
            let said = self.call(id, call);
            if said.as_ref().is_err_and(|said| or_later && said.status != Status::BpUnknown) {
                self.refused.lock().push((id, call));
            }
            self.close_rest();
            said
        }
    }

    impl<A: Vram> Graphs<A> for CudaGraphs<A>
    where
        A::Clock: pool_core::StreamClock<Stream = PoolStream>,
    {
        fn new() -> Self {
            Self {
                known: Mutex::default(),
                begun: AtomicUsize::new(0),
                refused: Mutex::default(),
                rest: Mutex::default(),
            }
        }

        #[inline]
        fn is_any_begun(&self) -> bool {
            self.begun.load(Relaxed) > 0
        }

        fn take_in(&self, on: &StreamOf<A>, handle: usize) -> Result<(), Failure> {
            for (filter, memory) in self.filters() {
                // SAFETY: the program says that the stream is in this capture, captures work with its memory only, and
                // releases the memory after its graphs.
                if filter.holds(handle) && unsafe { memory.take_in(on) }? {
                    break;
                }
            }
            Ok(())
        }

        fn begin(&self, pool: &BucketPool<A>, id: Id, filter: Filter) -> Result<(), Failure> {
            self.try_again();
            let mut known = self.known.lock();
            if Self::is_ambiguous(&known, id, &filter) {
                drop(known);
                let text = "a second capture without a filter; expected one, that tells their streams apart";
                return Err(Failure::new(Status::BpNotSubmitted, text));
            }
            let memory = || Arc::new(GraphPool::new(pool));
            let new = || Graph { memory: memory(), uses: 0, going: Vec::new() };
            let graph = known.entry(id).or_insert_with(new);
            graph.memory.begin();
            graph.uses += 1;
            graph.going.push(Arc::new(filter));
            self.begun.fetch_add(1, Relaxed);
            Ok(())
        }

        fn end(&self, id: Id, or_later: bool) -> Result<(), Failure> {
            self.told(id, Call::End, or_later)
        }

        fn release(&self, id: Id, or_later: bool) -> Result<(), Failure> {
            self.told(id, Call::Release, or_later)
        }

        fn close_rest(&self) -> bool {
            self.try_again();
            let waiting = std::mem::take(&mut *self.rest.lock());
            let count = waiting.len();
            // Beside another capture, or another thread that looks at it. The next call tries again.
            let close = |memory| match Arc::try_unwrap(memory) {
                Ok(memory) => GraphPool::close(memory).err().map(|(memory, _why)| Arc::new(memory)),
                Err(shared) => Some(shared),
            };
            let refused: Vec<_> = waiting.into_iter().filter_map(close).collect();
            let has_closed = refused.len() < count;
            self.rest.lock().extend(refused);
            has_closed
        }
    }
}
