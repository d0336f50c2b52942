//! Counters for Perfetto's viewer (<https://ui.perfetto.dev>), in the JSON trace format that it and
//! Chrome read.

use crate::operation::{Kind, Log};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// Writes three counters over time: live bytes by lane, live buffers, and, where the log has device
/// calls, the bytes that the recorded allocator had from the device.
///
/// # Errors
///
/// The error of the writer.
///
/// ```
/// use pool_trace::{perfetto, ptrace};
///
/// let log = ptrace::read("op,id,size,lane,dt_ns\na,0,64,0,0\nf,0,,0,2000\n".as_bytes())?;
/// let mut text = Vec::new();
/// perfetto::write(&log, &mut text)?;
/// assert!(std::str::from_utf8(&text)?.contains(r#""name":"live bytes""#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(log: &Log, out: &mut impl Write) -> io::Result<()> {
    let (mut ns, mut reserved) = (0_u64, 0_u64);
    let mut sizes: HashMap<u64, (u64, u32)> = HashMap::new();
    let mut lanes: BTreeMap<u32, u64> = BTreeMap::new();
    let process = json!({
        "name": "process_name", "ph": "M", "pid": 1, "args": { "name": log.source },
    });
    write!(out, "{{\"traceEvents\":[{process}")?;
    for one in &log.operations {
        ns = one.dt_ns.saturating_add(ns);
        let micros = ns as f64 / 1000.0;
        let counter = |name: &str, values: Value| counter(name, micros, &values);
        match one.kind {
            Kind::Allocate => {
                sizes.insert(one.id, (one.bytes, one.lane));
                let live = lanes.entry(one.lane).or_default();
                *live = live.saturating_add(one.bytes);
            }
            Kind::Free | Kind::FreeCompleted => {
                let Some((bytes, lane)) = sizes.remove(&one.id) else { continue };
                let live = lanes.entry(lane).or_default();
                *live = live.saturating_sub(bytes);
            }
            Kind::DeviceAllocate | Kind::DeviceFree => {
                reserved = match one.kind {
                    Kind::DeviceAllocate => reserved.saturating_add(one.bytes),
                    _ => reserved.saturating_sub(one.bytes),
                };
                write!(out, ",\n{}", counter("reserved bytes", json!({ "bytes": reserved })))?;
                continue;
            }
            _ => continue,
        }
        let by_lane: Map<String, Value> =
            lanes.iter().map(|(lane, bytes)| (format!("lane {lane}"), json!(bytes))).collect();
        write!(out, ",\n{}", counter("live bytes", Value::Object(by_lane)))?;
        write!(out, ",\n{}", counter("live buffers", json!({ "count": sizes.len() })))?;
    }
    writeln!(out, "\n],\"displayTimeUnit\":\"ns\"}}")
}

/// The value of a counter at a time.
fn counter(name: &str, micros: f64, values: &Value) -> Value {
    json!({
        "name": name, "ph": "C", "pid": 1, "ts": micros, "args": values,
    })
}
