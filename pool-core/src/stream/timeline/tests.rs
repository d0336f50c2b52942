//! What the clock of many streams keeps.

use super::*;
use std::collections::HashSet;
use std::ptr;

/// A device whose work is never done, or done at once.
struct Device {
    is_done: bool,
}

impl EventDriver for Device {
    type Raw = ();
    type Event = ();
    fn record(&self, _on: &()) -> Result<(), DeviceError> {
        Ok(())
    }
    fn wait(&self, _on: &(), _event: &()) -> Result<(), DeviceError> {
        Ok(())
    }
    fn query(&self, _event: &()) -> Result<bool, DeviceError> {
        Ok(self.is_done)
    }
    fn synchronize(&self, _event: &()) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// One buffer goes round as many streams, each behind the one before.
fn handed_round(clock: &Timeline<Device>, streams: usize) {
    let all: Vec<_> = std::iter::repeat_with(|| clock.register(())).take(streams).collect();
    let mut last = clock.mark(&all[0]);
    for _ in 0..20 {
        for on in &all {
            assert_eq!(clock.order(on, &[last]), Ok(Order::Ordered));
            assert!(clock.is_ordered(on, last) || clock.is_seen_done(last));
            let _ = clock.is_done(last);
            last = clock.mark(on);
        }
    }
}

/// Epochs that all clocks keep, those that are shared once; and events.
fn kept(clock: &Timeline<Device>) -> (usize, usize) {
    let (mut seen, mut sum, mut events) = (HashSet::new(), 0, 0);
    for slot in clock.slots.read().values() {
        let known = slot.known.lock();
        events += known.events.len();
        for clock in known.events.iter().map(|event| &event.clock).chain([&known.clock]) {
            if seen.insert(Arc::as_ptr(&clock.0)) {
                sum += clock.iter().count();
            }
        }
    }
    (sum, events)
}

#[test]
fn clocks_of_many_streams_keep_few_events() {
    for streams in [16, 64, 256] {
        let clock = Timeline::new(Device { is_done: false }, ());
        handed_round(&clock, streams);
        let (epochs, events) = kept(&clock);
        assert!(events <= MAX_EVENTS.max(MIN_EVENTS_PER_STREAM * (streams + 1)), "{events}");
        assert!(epochs <= (MAX_EVENTS / streams + 1) * streams * streams, "{epochs}");
    }
}

#[test]
fn clocks_forget_what_is_done_of_many_streams() {
    let clock = Timeline::new(Device { is_done: true }, ());
    handed_round(&clock, 512);
    let (epochs, _) = kept(&clock);
    assert!(epochs <= 512 * (MAX_KEPT_DONE + 1), "{epochs}");
}

#[test]
fn an_event_shares_the_clock_of_its_stream() {
    let clock = Timeline::new(Device { is_done: false }, ());
    let (one, other) = (clock.register(()), clock.register(()));
    assert_eq!(clock.order(&one, &[clock.mark(&other)]), Ok(Order::Ordered));
    let before = Arc::as_ptr(&one.0.known.lock().clock.0);
    for _ in 0..4 {
        assert_eq!(clock.order(&other, &[clock.mark(&one)]), Ok(Order::Ordered));
    }
    let known = one.0.known.lock();
    assert_eq!((known.events.len(), known.clock.iter().count()), (4, 1));
    assert!(known.events.iter().all(|event| ptr::eq(Arc::as_ptr(&event.clock.0), before)));
}
