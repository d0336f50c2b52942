//! Pools as a service sees them: a scrape by Prometheus, and events of `tracing`.
#![cfg(all(feature = "metrics", feature = "tracing"))]
#![expect(clippy::unwrap_used, reason = "a test")]

use pool_core::{BucketPool, KIB, MIB};
use pool_sim::SimDevice;
use pool_trace::TracingEvents;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Reads one page over HTTP.
fn scrape(address: SocketAddr) -> String {
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => std::thread::yield_now(), // the exporter begins to listen
        }
    };
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_scrape_has_the_figures_of_the_pool() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let exporter = metrics_exporter_prometheus::PrometheusBuilder::new();
    exporter.with_http_listener(address).install().unwrap();
    let builder = BucketPool::builder(SimDevice::new()).name("tiles");
    let pool = builder.reserved_limit(16 * KIB).build();
    let held = pool.allocate(3 * KIB).unwrap();
    drop(pool.allocate(4 * KIB).unwrap());
    drop(pool.allocate(4 * KIB).unwrap());
    // It waits for what `held` and the next buffer have, in vain.
    let next = pool.allocate(8 * KIB).unwrap();
    pool.allocate_timeout(8 * KIB, Duration::ZERO).unwrap_err();
    assert!(pool.allocate(64 * KIB).is_err());
    drop(next);
    pool_trace::metrics::publish(&pool);
    let page = scrape(address);
    for line in [
        "bucketpool_hits_total{pool=\"tiles\"} 1",
        "bucketpool_misses_total{pool=\"tiles\"} 3",
        "bucketpool_failures_total{pool=\"tiles\"} 2",
        "bucketpool_waits_total{pool=\"tiles\"} 1",
        "bucketpool_timeouts_total{pool=\"tiles\"} 1",
        "bucketpool_waiting_requests{pool=\"tiles\"} 0",
        "bucketpool_requested_bytes{pool=\"tiles\"} 3072",
        "bucketpool_reserved_bytes{pool=\"tiles\"} 12288",
        "bucketpool_reserved_limit_bytes{pool=\"tiles\"} 16384",
        "bucketpool_cached_limit_bytes{pool=\"tiles\"} inf",
        "# HELP bucketpool_hits_total Requests that free memory of the pool served",
        "# HELP bucketpool_reserved_limit_bytes The limit on reserved bytes",
        "# HELP bucketpool_waiting_requests Requests that wait for memory now",
    ] {
        assert!(page.contains(line), "{line} in {page}");
    }
    drop(held);
    pool_trace::metrics::publish(&pool);
    assert!(scrape(address).contains("bucketpool_requested_bytes{pool=\"tiles\"} 0"));
    pool_trace::metrics::publish_stats("others", &pool.stats());
    assert!(scrape(address).contains("bucketpool_misses_total{pool=\"others\"} 3"));
}

/// Keeps the message of each event, and its fields behind it.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields = format!("{} {name}={value:?}", self.fields),
        }
    }
}

impl Subscriber for Messages {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.message + &line.fields);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn misses_evictions_and_refusals_are_events_and_hits_are_none() {
    let messages = Messages::default();
    let builder = BucketPool::builder(SimDevice::new()).reserved_limit(2 * MIB);
    let pool = builder.observer(Arc::new(TracingEvents)).build();
    tracing::subscriber::with_default(messages.clone(), || {
        drop(pool.allocate(MIB).unwrap());
        drop(pool.allocate(MIB).unwrap()); // a hit
        drop(pool.allocate(2 * MIB).unwrap()); // the first block goes for it
        let _live = pool.allocate(2 * MIB).unwrap();
        assert!(pool.allocate(5 * MIB).is_err());
    });
    let told = messages.0.lock().unwrap().clone();
    let names: Vec<_> = told.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["miss", "evict", "miss", "refuse"]);
    assert!(told[1].contains("reason=\"shortage\""), "{told:?}");
    let refusal = told.last().unwrap();
    for field in [
        "refuse",
        "requested=5242880",
        "bytes=8388608",
        "why=\"over the reserved limit\"",
        "verdict=\"Limit\"",
        "reserved=2097152",
        "limit=2097152",
        "in_buffers=2097152",
    ] {
        assert!(refusal.contains(field), "{field} in {refusal}");
    }
    assert_eq!(pool.stats().hits, 2);
}
