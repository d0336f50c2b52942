//! The state that all allocators and scopes of one device share: the device, its queue and limits,
//! how buffers are made and zeroed, whether the device is lost, and which faults were noticed.

use crate::groups::Groups;
use crate::idle::IdleMemory;
use crate::leaked::LeakedClones;
use crate::looks::look;
use crate::loss::{Loss, OnLost};
use crate::moved::Move;
use crate::zeroing::{Owed, ToZero};
use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread;
use wgpu::{
    Buffer, BufferDescriptor, BufferSize, BufferUsages, CommandBuffer, CommandEncoder,
    CommandEncoderDescriptor, Device, ErrorFilter, Limits, PollType, Queue, SubmissionIndex,
    Texture, TextureViewDescriptor,
};

/// Scopes that are opened after the last use of a bind group until it goes, unless the program says
/// otherwise: some frames, also where a frame has several scopes.
const AGE: u64 = 64;

/// Faults that are remembered at most.
const MOST_FAULTS: usize = 64;

pub(crate) struct Shared {
    /// Numbers are never used twice.
    pub(crate) id: u64,
    pub(crate) device: Device,
    pub(crate) queue: Queue,
    pub(crate) limits: Limits,
    pub(crate) leaked: LeakedClones,
    pub(crate) groups: Mutex<Groups>,
    pub(crate) idle: IdleMemory,
    loss: Arc<Loss>,
    /// What the device is asked to write to, to see whether it is lost.
    target: OnceLock<Buffer>,
    /// Whether calls that do not wait may poll the device.
    polls: AtomicBool,
    /// Scopes after which what none of them used goes.
    age: AtomicU64,
    /// Submissions that wgpu refused. After each, the program may have destroyed any buffer.
    refusals: AtomicU64,
    on_refused: Mutex<Option<OnRefused>>,
    faults: Mutex<Faults>,
}

/// What the program calls for what wgpu says of each refusal.
pub(crate) type OnRefused = Arc<dyn Fn(&str) + Send + Sync>;

/// What the program calls for each fault.
pub(crate) type OnFault = Arc<dyn Fn(DeviceError) + Send + Sync>;

/// The faults of the program that no call could return.
#[derive(Default)]
struct Faults {
    /// Those that nobody has taken, oldest first.
    untaken: Vec<DeviceError>,
    /// How many there were.
    count: u64,
    told: Option<OnFault>,
}

impl Shared {
    pub(crate) fn new(device: Device, queue: Queue) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (id, limits) = (NEXT.fetch_add(1, Relaxed), device.limits());
        let (leaked, groups, faults) =
            (LeakedClones::default(), Mutex::default(), Mutex::default());
        Self {
            id,
            device,
            queue,
            limits,
            leaked,
            groups,
            idle: IdleMemory::default(),
            loss: Arc::default(),
            target: OnceLock::new(),
            polls: AtomicBool::new(true),
            age: AtomicU64::new(AGE),
            refusals: AtomicU64::new(0),
            on_refused: Mutex::default(),
            faults,
        }
    }

    /// Takes the device's one callback for its loss.
    pub(crate) fn learn_of_loss(&self) {
        self.loss.learn(&self.device);
    }

    pub(crate) fn on_lost(&self, told: OnLost) {
        self.loss.on_lost(told);
    }

    pub(crate) fn age(&self) -> u64 {
        self.age.load(Relaxed)
    }

    pub(crate) fn set_age(&self, scopes: u64) {
        self.age.store(scopes, Relaxed);
    }

    pub(crate) fn stop_polling(&self) {
        self.polls.store(false, Relaxed);
    }

    /// Lets wgpu run the callbacks that are ready, unless the program polls itself.
    pub(crate) fn poll(&self) {
        if self.polls.load(Relaxed) {
            look();
            // A lost device is told by the next call.
            let _ = self.device.poll(PollType::Poll);
        }
    }

    /// How many submissions wgpu has refused, as far as that was noticed.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Relaxed)
    }

    /// Notes that wgpu refused a submission.
    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Relaxed);
    }

    /// Whether the program has destroyed a buffer: wgpu refuses commands with it when these are submitted, also
    /// those that clear no bytes.
    pub(crate) fn is_destroyed(&self, buffer: &Buffer) -> bool {
        !self.run_alone(|encoder| encoder.clear_buffer(buffer, 0, Some(0)))
    }

    /// Submits commands by themselves. Returns whether wgpu took them; nobody is told why not.
    pub(crate) fn run_alone(&self, record: impl FnOnce(&mut CommandEncoder)) -> bool {
        let run = || {
            let mut encoder = self.encoder("bucketpool look");
            record(&mut encoder);
            self.queue.submit([encoder.finish()])
        };
        self.probe(ErrorFilter::Validation, run).1.is_none()
    }

    /// Whether the program has destroyed a texture: wgpu makes no view of it.
    pub(crate) fn is_texture_destroyed(&self, texture: &Texture) -> bool {
        let view = || drop(texture.create_view(&TextureViewDescriptor::default()));
        self.probe(ErrorFilter::Validation, view).1.is_some()
    }

    /// Submits commands. Returns their submission, and whether wgpu refused it, which it does as a whole; the
    /// program is told why, unless it was already. A lost device refuses them without a word.
    pub(crate) fn submit(
        &self,
        commands: impl IntoIterator<Item = CommandBuffer>,
        is_told: bool,
    ) -> (SubmissionIndex, bool) {
        let (index, error) = self.probe(ErrorFilter::Validation, || self.queue.submit(commands));
        if error.is_some() && !self.is_lost() {
            self.count_refusal();
        }
        self.tell_refused(error.as_ref().filter(|_| !is_told));
        (index, error.is_some())
    }

    pub(crate) fn mark_lost(&self) {
        self.loss.mark();
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss.is_lost()
    }

    /// Whether the device is lost, also where wgpu has not told: the program is told then. It costs what
    /// refused calls cost, a microsecond.
    pub(crate) fn notice_loss(&self) -> bool {
        // A browser tells errors later.
        if !self.is_lost()
            && !cfg!(target_family = "wasm")
            && self.target().is_some_and(|target| self.is_gone(target))
        {
            self.loss.notice();
        }
        self.is_lost()
    }

    fn target(&self) -> Option<&Buffer> {
        if self.target.get().is_none() {
            let made = self.try_create(&BufferDescriptor {
                label: Some("bucketpool loss"),
                size: BufferSize::MIN.get(),
                usage: BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            made.ok().and_then(|made| self.target.set(made).ok());
        }
        self.target.get()
    }

    /// The error of a call that was refused: the loss of the device, if that is why.
    pub(crate) fn lost_or(&self, error: DeviceError) -> DeviceError {
        if self.notice_loss() { lost() } else { error }
    }

    /// An error once the device is lost.
    pub(crate) fn living(&self) -> Result<(), DeviceError> {
        if self.is_lost() { Err(lost()) } else { Ok(()) }
    }

    /// Remembers a fault of the program that no call can return.
    pub(crate) fn note(&self, fault: DeviceError) {
        self.note_all(&[fault]);
    }

    /// Remembers faults. The closure of the program may panic, and each is remembered by then.
    pub(crate) fn note_all(&self, noted: &[DeviceError]) {
        if noted.is_empty() {
            return;
        }
        let told = {
            let mut faults = self.faults.lock();
            faults.count += noted.len() as u64;
            let room = MOST_FAULTS - faults.untaken.len();
            faults.untaken.extend(noted.iter().take(room));
            faults.told.clone()
        };
        if let Some(told) = told {
            foreign(|| noted.iter().for_each(|fault| told(*fault)));
        }
    }

    pub(crate) fn on_refused(&self, told: OnRefused) {
        *self.on_refused.lock() = Some(told);
    }

    pub(crate) fn on_fault(&self, told: OnFault) {
        self.faults.lock().told = Some(told);
    }

    pub(crate) fn fault_count(&self) -> u64 {
        self.faults.lock().count
    }

    /// The faults since the last call.
    pub(crate) fn take_faults(&self) -> Vec<DeviceError> {
        let mut faults = std::mem::take(&mut self.faults.lock().untaken);
        if self.loss.was_replaced() {
            let call = "the device-lost callback was replaced: call `mark_lost` from the new one";
            faults.push(DeviceError::new(Why::Other, call));
        }
        faults
    }

    /// A new buffer, checked before anybody gets it.
    pub(crate) fn create(&self, descriptor: &BufferDescriptor<'_>) -> Result<Buffer, DeviceError> {
        self.make(|| self.try_create(descriptor))
    }

    /// Makes something, for which idle memory goes where memory is short.
    pub(crate) fn make<T>(
        &self,
        make: impl Fn() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        self.idle.make(|| self.poll(), make)
    }

    fn try_create(&self, descriptor: &BufferDescriptor<'_>) -> Result<Buffer, DeviceError> {
        self.living()?;
        // A buffer is returned even where it is invalid.
        let ((buffer, invalid), out) = self.refused(ErrorFilter::OutOfMemory, || {
            self.refused(ErrorFilter::Validation, || self.device.create_buffer(descriptor))
        });
        if !cfg!(target_family = "wasm") && self.is_gone(&buffer) {
            self.loss.notice();
        }
        self.living()?;
        match (invalid, out) {
            (false, false) => Ok(buffer),
            (_, true) => Err(DeviceError::new(Why::OutOfMemory, "create_buffer")),
            (true, false) => Err(DeviceError::new(Why::Unsupported, "create_buffer")),
        }
    }

    /// Whether the device is lost or destroyed, which only a poll would tell, with all callbacks of the
    /// program: it is asked for a write that it refuses, and a lost one refuses it without an error.
    fn is_gone(&self, buffer: &Buffer) -> bool {
        let unaligned = || self.queue.write_buffer_with(buffer, 1, BufferSize::MIN).is_none();
        let (none, error) = self.probe(ErrorFilter::Validation, unaligned);
        none && error.is_none()
    }

    /// A call, and whether wgpu refused it, whose words the program is told.
    pub(crate) fn refused<T>(&self, filter: ErrorFilter, call: impl FnOnce() -> T) -> (T, bool) {
        let (made, error) = self.probe(filter, call);
        self.tell_refused(error.as_ref());
        (made, error.is_some())
    }

    fn tell_refused(&self, error: Option<&wgpu::Error>) {
        let Some(error) = error.filter(|_| !self.is_lost()) else { return };
        let told = self.on_refused.lock().clone();
        if let Some(told) = told {
            foreign(|| told(&error.to_string()));
        }
    }

    /// A call, and what wgpu said if it refused it. A browser would tell too late, so there its own handler
    /// is told instead.
    pub(crate) fn probe<T>(
        &self,
        filter: ErrorFilter,
        call: impl FnOnce() -> T,
    ) -> (T, Option<wgpu::Error>) {
        look();
        if cfg!(target_family = "wasm") {
            return (call(), None);
        }
        let scope = self.device.push_error_scope(filter);
        let made = call();
        (made, now(scope.pop()).flatten())
    }

    /// Unmaps a buffer. Returns whether it can be used: wgpu refuses to unmap a buffer of a
    /// destroyed device, and calls the callbacks of mapped buffers before it tells that loss.
    /// Without a scope of errors, the program's poll would panic inside of such a callback.
    pub(crate) fn unmap(&self, buffer: &Buffer) -> bool {
        !self.is_lost() && self.probe(ErrorFilter::Validation, || buffer.unmap()).1.is_none()
    }

    pub(crate) fn encoder(&self, label: &'static str) -> CommandEncoder {
        self.device.create_command_encoder(&CommandEncoderDescriptor { label: Some(label) })
    }

    /// Submits zeroing by itself. Returns whether wgpu accepted all of it. A buffer that was destroyed does
    /// not take the others with it. The program is told of a refusal, unless it was already.
    pub(crate) fn zero_now(&self, to_zero: &[ToZero], is_told: bool) -> bool {
        if to_zero.is_empty() || self.zero_together(to_zero, is_told) {
            return true;
        }
        let living = to_zero.iter().filter(|zero| !self.is_destroyed(zero.buffer()));
        self.zero_together(living, true);
        false
    }

    /// Does by itself what a step owes that did not run. What the program has destroyed is left out.
    pub(crate) fn settle(&self, owed: &Owed) {
        let Owed { ahead, filled, written, moves } = owed;
        for to_zero in [ahead, filled, written] {
            self.zero_now(to_zero, false);
        }
        self.run_all(moves, Move::record);
    }

    /// Submits commands by themselves: together, or where wgpu refuses that, one after the other, so that what was
    /// destroyed takes no other with it. Returns whether all ran.
    pub(crate) fn run_all<'o, T: 'o>(
        &self,
        all: impl IntoIterator<Item = &'o T, IntoIter: Clone>,
        record: impl Fn(&T, &mut CommandEncoder),
    ) -> bool {
        let all = all.into_iter();
        if all.clone().next().is_none()
            || self.run_alone(|encoder| all.clone().for_each(|one| record(one, encoder)))
        {
            return true;
        }
        let mut ran = true;
        for one in all {
            ran &= self.run_alone(|encoder| record(one, encoder));
        }
        ran
    }

    fn zero_together<'z>(
        &self,
        to_zero: impl IntoIterator<Item = &'z ToZero>,
        is_told: bool,
    ) -> bool {
        let mut encoder = self.encoder("bucketpool zeroing");
        to_zero.into_iter().for_each(|zero| zero.record(&mut encoder));
        !self.submit([encoder.finish()], is_told).1
    }

    /// Ends an encoder. Returns whether wgpu refused it, which names the encoder then: it refuses it again when
    /// it is submitted, in other words.
    pub(crate) fn finish(&self, encoder: CommandEncoder) -> (CommandBuffer, bool) {
        self.refused(ErrorFilter::Validation, || encoder.finish())
    }
}

/// Calls a closure of the program. Its panic goes on, but in the drop of what another panic unwinds.
fn foreign(call: impl FnOnce()) {
    if thread::panicking() {
        drop(catch_unwind(AssertUnwindSafe(call))); // two would end the process
    } else {
        call();
    }
}

pub(crate) fn lost() -> DeviceError {
    DeviceError::new(Why::Lost, "the wgpu device")
}

/// The value of a future that is ready at once, as those of native devices are here.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
