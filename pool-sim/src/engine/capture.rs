//! Captures: what a stream is given goes into a graph instead of its queue, and runs with each
//! launch. Each stream of a capture is a branch; events between them are the edges.

use super::{Access, DeviceError, Engine, Event, Op, Range, VectorClock, Why};
use std::collections::HashMap;

/// Work that was captured, with its edges.
#[derive(Debug, Default)]
pub struct Graph {
    branches: usize,
    steps: Vec<(usize, GraphStep)>,
    events: usize,
}

#[derive(Clone, Debug)]
enum GraphStep {
    Use { op: Op, bytes: Range<u64>, access: Access },
    Record(usize),
    Wait(usize),
}

/// The captures that are going on.
#[derive(Debug, Default)]
pub(super) struct Captures {
    next: u64,
    /// For each stream under capture, which capture and which branch.
    of_stream: HashMap<usize, (u64, usize)>,
    graphs: HashMap<u64, Graph>,
}

fn refuse<T>(call: &'static str, code: i64) -> Result<T, DeviceError> {
    Err(DeviceError::new(Why::NotSubmitted, call).code(code))
}

impl Captures {
    fn branch(&mut self, on: usize) -> Option<(u64, usize, &mut Graph)> {
        let (id, branch) = *self.of_stream.get(&on)?;
        Some((id, branch, self.graphs.get_mut(&id)?))
    }

    /// The number of the capture that a stream is under.
    pub(super) fn of(&self, stream: usize) -> Option<u64> {
        self.of_stream.get(&stream).map(|(id, _)| *id)
    }

    /// Whether a stream is under capture, and if so, takes the work.
    pub(super) fn takes(&mut self, on: usize, op: &Op, bytes: &Range<u64>, access: Access) -> bool {
        let Some((_, branch, graph)) = self.branch(on) else { return false };
        let step = GraphStep::Use { op: op.clone(), bytes: bytes.clone(), access };
        graph.steps.push((branch, step));
        true
    }

    /// An edge of the graph, if the stream is under capture.
    pub(super) fn record(&mut self, on: usize) -> Option<Event> {
        let (id, branch, graph) = self.branch(on)?;
        let number = graph.events;
        graph.events += 1;
        graph.steps.push((branch, GraphStep::Record(number)));
        let (clock, captured) = (VectorClock::default(), Some((id, number)));
        Some(Event { stream: on, at: 0, clock, captured })
    }

    /// Whether a wait is an edge of a graph. Waiting for a captured event takes a stream into the
    /// capture; a stream under capture may wait for nothing outside.
    pub(super) fn wait(&mut self, on: usize, event: &Event) -> Result<bool, DeviceError> {
        let Some((of, number)) = event.captured else {
            let captured = self.of_stream.contains_key(&on);
            return if captured { refuse("sim wait outside a capture", 905) } else { Ok(false) };
        };
        let Some(graph) = self.graphs.get_mut(&of) else {
            return refuse("sim wait for an ended capture", 901);
        };
        self.of_stream.entry(on).or_insert_with(|| {
            graph.branches += 1;
            (of, graph.branches - 1)
        });
        match self.branch(on) {
            Some((id, branch, graph)) if id == of => {
                graph.steps.push((branch, GraphStep::Wait(number)));
                Ok(true)
            }
            _ => refuse("sim wait for another capture", 902),
        }
    }
}

impl Engine {
    /// Work that `on` is given from here on goes into a graph.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if the stream is under capture already.
    ///
    /// ```
    /// # mod bucketpool { pub use pool_core::*; pub use pool_sim as sim; pub use pool_sim::conformance; }
    /// use bucketpool::{Why, sim::engine::Engine};
    ///
    /// let mut engine = Engine::new(4096);
    /// let (stream, at) = (engine.new_stream(), engine.allocate(4096)?);
    /// engine.begin_capture(stream)?;
    /// assert_eq!(engine.begin_capture(stream).unwrap_err().why, Why::NotSubmitted);
    /// engine.fill(stream, at..at + 1, 7); // goes into the graph
    /// let graph = engine.end_capture(stream)?;
    /// assert_eq!(engine.end_capture(stream).unwrap_err().why, Why::NotSubmitted);
    /// engine.launch(&graph, stream);
    /// assert_eq!(engine.read(stream, at..at + 1), [7]);
    /// # Ok::<(), pool_core::DeviceError>(())
    /// ```
    pub fn begin_capture(&mut self, on: usize) -> Result<(), DeviceError> {
        if self.captures.of_stream.contains_key(&on) {
            return refuse("sim begin capture", 401);
        }
        let id = self.captures.next;
        self.captures.next += 1;
        self.captures.of_stream.insert(on, (id, 0));
        self.captures.graphs.insert(id, Graph { branches: 1, ..Graph::default() });
        Ok(())
    }

    /// The capture that began on `on` ends, for all its streams.
    ///
    /// # Errors
    ///
    /// [`Why::NotSubmitted`] if none began there, or if a stream that it took in was not joined:
    /// the first stream does not wait for all that the other was given.
    ///
    /// See [`Engine::begin_capture`] for an example.
    pub fn end_capture(&mut self, on: usize) -> Result<Graph, DeviceError> {
        let id = match self.captures.of_stream.get(&on) {
            Some((id, 0)) => *id,
            Some(_) => return refuse("sim end of a capture of another stream", 903),
            None => return refuse("sim end capture", 401),
        };
        self.captures.of_stream.retain(|_, (of, _)| *of != id);
        let graph = self.captures.graphs.remove(&id).unwrap_or_default();
        if graph.is_joined() { Ok(graph) } else { refuse("sim end of an unjoined capture", 904) }
    }

    /// Returns whether a stream is under capture.
    #[must_use]
    pub fn is_capturing(&self, on: usize) -> bool {
        self.capture_of(on).is_some()
    }

    /// Returns the number of the capture that a stream is under. No number is used twice.
    #[must_use]
    pub fn capture_of(&self, on: usize) -> Option<u64> {
        self.captures.of(on)
    }

    /// Returns the streams of a capture, in no order.
    pub fn streams_of(&self, capture: u64) -> impl Iterator<Item = usize> {
        let streams = self.captures.of_stream.iter();
        streams.filter(move |(_, (of, _))| *of == capture).map(|(stream, _)| *stream)
    }

    /// Gives a graph to a stream: what follows on it runs after all of the graph. Branches run on
    /// streams of their own.
    pub fn launch(&mut self, graph: &Graph, on: usize) {
        let others = (1..graph.branches).map(|_| self.new_stream());
        let streams: Vec<_> = [on].into_iter().chain(others.collect::<Vec<_>>()).collect();
        let start = self.event(on);
        for branch in &streams[1..] {
            self.wait_for(*branch, &start);
        }
        let mut events = HashMap::new();
        for (branch, step) in &graph.steps {
            let stream = streams[*branch];
            match step {
                GraphStep::Use { op, bytes, access } => {
                    self.give_use(stream, bytes.clone(), *access, op.clone());
                }
                GraphStep::Record(number) => {
                    events.insert(*number, self.event(stream));
                }
                GraphStep::Wait(number) => {
                    if let Some(event) = events.get(number) {
                        self.wait_for(stream, event);
                    }
                }
            }
        }
        self.ended.extend(&streams[1..]);
    }
}

impl Graph {
    /// Whether the first branch waits, in the end, for all that each other was given.
    fn is_joined(&self) -> bool {
        // For each branch, up to which step it is after each; and its last use.
        let mut reached = vec![vec![0; self.branches]; self.branches];
        let (mut recorded, mut last) = (HashMap::new(), vec![0; self.branches]);
        for (at, (branch, step)) in self.steps.iter().enumerate() {
            reached[*branch][*branch] = at + 1;
            match step {
                GraphStep::Use { .. } => last[*branch] = at + 1,
                GraphStep::Record(number) => {
                    recorded.insert(*number, reached[*branch].clone());
                }
                GraphStep::Wait(number) => {
                    let known = recorded.get(number).cloned().unwrap_or_default();
                    for (mine, theirs) in reached[*branch].iter_mut().zip(known) {
                        *mine = theirs.max(*mine);
                    }
                }
            }
        }
        (1..self.branches).all(|branch| reached[0][branch] >= last[branch])
    }
}
