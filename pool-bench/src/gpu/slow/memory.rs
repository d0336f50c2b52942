//! Cases about the device's memory: a full device, pages that move, several contexts and pools.

use super::{BYTES, Refused, Slow, blocking, failed, ordered};
use crate::gpu::questions::{call, done};
use bucketpool::cuda::cudarc::driver::{CudaContext, sys};
use bucketpool::cuda::{CudaAsyncAllocator, CudaDevice, CudaVmmAllocator, into_slice};
use bucketpool::port::TransferLater;
use bucketpool::{ArenaConfig, BucketPool, GIB, MIB, StreamClock, Why};
use serde_json::{Map, Value, json};
use std::time::Instant;

impl Slow {
    /// Fills the device, frees half, and asks for a block twice as large.
    pub(super) fn full(&self) -> Result<Value, Refused> {
        let total = self.gpu.device.total_bytes();
        if self.busy.is_none() || total < 4 * GIB {
            return Ok(json!({ "left_out": "no device of 4 GiB and more", "good": true }));
        }
        let pool = blocking(self.gpu.device.clone())?.build();
        let mut live = Vec::new();
        let error = loop {
            match pool.allocate_on(&self.on[0], GIB) {
                Ok(buffer) => live.push(buffer),
                Err(error) => break error,
            }
        };
        let (count, half) = (live.len(), live.len() / 2);
        live.truncate(half);
        self.slow(&self.on[2])?;
        let larger = pool.allocate_on(&self.on[1], 2 * GIB);
        let fault = self.gpu.device.clock().fault();
        let good = larger.is_ok() && fault.is_none() && error.why() == Why::OutOfMemory;
        Ok(json!({ "blocks": count, "refusal": error.to_string(), "larger": larger.is_ok(),
            "good": good }))
    }

    pub(super) fn slices_in_a_loop(&self) -> Result<Value, Refused> {
        let memory = CudaAsyncAllocator::new(self.gpu.device.clone(), 0)?;
        let pool = BucketPool::new(memory);
        let total = self.gpu.device.total_bytes();
        let bytes = if self.busy.is_some() { GIB } else { MIB };
        let turns = 2 * total.min(100 * GIB) / bytes.max(total / 50);
        let mut codes = Map::new();
        for (name, waits) in [("waits each turn", true), ("does not wait", false)] {
            let mut refused = Value::Null;
            for turn in 0..turns {
                match pool.allocate_on(&self.on[0], bytes) {
                    Ok(buffer) => drop(into_slice::<u8>(buffer.detach(), &self.gpu.streams[0])?),
                    Err(error) => {
                        refused = json!({ "turn": turn, "why": error.to_string() });
                        break;
                    }
                }
                if waits {
                    self.gpu.streams[0].synchronize()?;
                }
            }
            done(call!(cuCtxSynchronize()), "cuCtxSynchronize")?;
            codes.insert(name.into(), refused);
        }
        let good = codes.values().all(Value::is_null);
        codes.insert("good".into(), good.into());
        Ok(codes.into())
    }

    /// Pieces of an arena are unmapped and mapped elsewhere beside work on their neighbours.
    pub(super) fn moved(&self) -> Result<Value, Refused> {
        let memory = CudaVmmAllocator::new(self.gpu.device.clone(), &[])?;
        let pool = BucketPool::builder(memory).arena(ArenaConfig::pages(32 * MIB, 0.0)).build();
        let s = &self.on[0];
        let mut kept = Vec::new();
        for byte in 0..6_u8 {
            let bytes = if byte % 2 == 0 { 96 * MIB } else { 6 * MIB };
            let buffer = pool.allocate_on(s, bytes).map_err(|e| failed(&e))?;
            kept.push((Self::fill(&buffer, byte, s)?, buffer, byte));
        }
        self.slow(s)?;
        Self::fill(&kept[0].1, 0, s)?;
        // The middle goes, and comes back for a larger block at another place.
        drop(kept.remove(2));
        let given = pool.trim(u64::MAX).map_err(|e| failed(&e))?;
        let larger = pool.allocate_on(&self.on[1], 160 * MIB).map_err(|e| failed(&e))?;
        let at = Self::fill(&larger, 9, &self.on[1])?;
        let mut good = Self::has(at, larger.size(), 9)?;
        for (at, buffer, byte) in &kept {
            good &= Self::has(*at, buffer.size(), *byte)?;
        }
        Ok(json!({ "given_back": given, "good": good }))
    }

    /// A pool of one context is used while another context is current.
    pub(super) fn contexts(&self) -> Result<Value, Refused> {
        if self.busy.is_none() {
            return Ok(json!({ "left_out": "no kernels, no other context", "good": true }));
        }
        let mut raw = std::ptr::null_mut();
        let created = call!(cuCtxCreate_v4(&raw mut raw, std::ptr::null_mut(), 0, 0));
        if created != 0 {
            return Ok(json!({ "left_out": format!("cuCtxCreate: code {created}"), "good": true }));
        }
        let ordinal = 0;
        // SAFETY: a context of this device that was made above; its wrapper ends it.
        let context = unsafe { CudaContext::from_raw_context(0, ordinal, raw) }?;
        let second = CudaDevice::in_context(context)?;
        let pool = blocking(self.gpu.device.clone())?.build();
        let beside = blocking(second.clone())?.build();
        let theirs = second.stream(&second.context().new_stream()?)?;
        let (a, b) = (pool.allocate_on(&self.on[0], BYTES), beside.allocate_on(&theirs, BYTES));
        let (a, b) = (a.map_err(|e| failed(&e))?, b.map_err(|e| failed(&e))?);
        done(call!(cuCtxSetCurrent(raw)), "cuCtxSetCurrent")?;
        drop(pool.allocate_on(&self.on[1], BYTES).map_err(|e| failed(&e))?);
        let mut current = std::ptr::null_mut();
        done(call!(cuCtxGetCurrent(&raw mut current)), "cuCtxGetCurrent")?;
        let is_restored = current == raw;
        drop((a, b));
        let given = beside.clear().map_err(|e| failed(&e))?;
        let fault = self.gpu.device.clock().fault();
        self.gpu.device.context().bind_to_thread()?;
        let good = is_restored && fault.is_none();
        Ok(json!({ "context_restored": is_restored, "given_back": given, "good": good }))
    }

    pub(super) fn later(&self) -> Result<Value, Refused> {
        let pool = blocking(self.gpu.device.clone())?.build();
        let s = &self.on[0];
        let buffer = pool.allocate_on(s, 64 * MIB).map_err(|e| failed(&e))?;
        let source = vec![7; 64 << 20];
        self.slow(s)?;
        let mut times = Vec::new();
        for _ in 0..2 {
            let began = Instant::now();
            let view = buffer.on(s)?;
            // SAFETY: the buffer lives until the device is done, below.
            unsafe { pool.allocator().write_later(&view, 0, &source, s) }?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        let at = buffer.on(s)?.as_ptr();
        let is_right = Self::has(at, buffer.size(), 7)?;
        // Told and not judged: the second write waits today (the ring of chunks is another work).
        Ok(json!({ "ms": times, "right": is_right }))
    }

    pub(super) fn two_pools(&self) -> Result<Value, Refused> {
        let total = self.gpu.device.total_bytes();
        if self.busy.is_none() {
            return Ok(json!({ "left_out": "no kernels, no real memory", "good": true }));
        }
        let share = (total / 10 * 6) & !(2 * MIB - 1);
        let first = ordered(self.gpu.device.clone())?.build();
        drop(first.allocate_on(&self.on[0], share).map_err(|e| failed(&e))?);
        first.clear().map_err(|e| failed(&e))?;
        done(call!(cuCtxSynchronize()), "cuCtxSynchronize")?;
        let second = ordered(self.gpu.device.clone())?.build();
        let got = second.allocate_on(&self.on[1], share);
        let why = got.as_ref().err().map(ToString::to_string);
        Ok(json!({ "bytes": share, "the second is refused": why }))
    }

    pub(super) fn rounding(&self) -> Result<Value, Refused> {
        let mut answers = Map::new();
        for bytes in [2 * MIB + MIB / 10, MIB + MIB / 10] {
            let (free, mut blocks) = (self.gpu.device.free_bytes()?, Vec::new());
            let count = if self.busy.is_some() { 1000 } else { 10 };
            for _ in 0..count {
                let mut block = 0;
                let size = usize::try_from(bytes).unwrap_or(0);
                done(call!(cuMemAlloc_v2(&raw mut block, size)), "cuMemAlloc")?;
                blocks.push(block);
            }
            let taken = free.saturating_sub(self.gpu.device.free_bytes()?);
            for block in blocks {
                done(call!(cuMemFree_v2(block)), "cuMemFree")?;
            }
            let ratio = taken as f64 / (bytes * count) as f64;
            answers.insert(format!("{bytes} bytes, taken over requested"), json!(ratio));
        }
        Ok(answers.into())
    }
}
