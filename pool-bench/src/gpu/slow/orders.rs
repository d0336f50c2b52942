//! Cases about the order of work on a block that serves again.

use super::{BYTES, Refused, Slow, blocking, failed};
use crate::gpu::questions::{call, done};
use bucketpool::cuda::cudarc::driver::sys;
use bucketpool::cuda::{
    CudaAsyncAllocator, CudaCapture, CudaDevice, CudaPinnedAllocator, PinnedBytes, PoolStream,
    Vram, into_slice,
};
use bucketpool::stream::StealPolicy;
use bucketpool::{BucketPool, PoolBuilder, StreamClock};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

impl Slow {
    /// A block that slow work still writes serves another stream: in the right order, whatever the
    /// policy of steals and however the work was told.
    pub(super) fn reuse<A: Vram>(
        &self,
        make: fn(CudaDevice) -> Result<PoolBuilder<A>, Refused>,
    ) -> Result<Value, Refused> {
        let mut answers = Map::new();
        let mut good = true;
        for steal in [StealPolicy::Wait, StealPolicy::Ordered, StealPolicy::Never] {
            for how in ["use", "until drop", "two streams", "retired", "legacy default"] {
                let pool = make(self.gpu.device.clone())?.steal(steal).build();
                let legacy = self.gpu.device.clock().default_stream().clone();
                let own = self.gpu.device.context().new_stream()?;
                let own = self.gpu.device.stream(&own)?;
                let first = if how == "legacy default" { &legacy } else { &own };
                let (at, host) = self.hand_on(&pool, how, first)?;
                let (second, began) = (&self.on[1], Instant::now());
                let next = pool.allocate_on(second, BYTES).map_err(|e| failed(&e))?;
                let took = began.elapsed();
                let new = Self::fill(&next, 2, second)?;
                let is_right = Self::has(new, BYTES, 2)?;
                let waited = self.waited(took) || self.waited(host);
                good &= is_right && !waited;
                answers.insert(
                    format!("{steal:?}, {how}"),
                    json!({ "right": is_right, "same_address": at == new, "host_waited": waited }),
                );
            }
        }
        answers.insert("good".into(), good.into());
        Ok(answers.into())
    }

    /// Slow work on a buffer, which is dropped while it runs. Returns the address, and the time
    /// that the host took.
    pub(super) fn hand_on<A: Vram>(
        &self,
        pool: &BucketPool<A>,
        how: &str,
        first: &PoolStream,
    ) -> Result<(u64, Duration), Refused> {
        let buffer = pool.allocate_on(first, BYTES).map_err(|e| failed(&e))?;
        self.slow(first)?;
        let began = Instant::now();
        let at = Self::fill(&buffer, 1, first)?;
        match how {
            "until drop" => buffer.use_until_drop(first)?,
            "two streams" => {
                self.slow(&self.on[2])?;
                Self::fill(&buffer, 3, &self.on[2])?;
            }
            _ => {}
        }
        drop(buffer);
        if how == "retired" {
            self.gpu.device.retire(first)?;
        }
        Ok((at, began.elapsed()))
    }

    /// Memory that slow work writes goes back to the driver: after the work, and without a fault.
    pub(super) fn give_back<A: Vram>(
        &self,
        make: fn(CudaDevice) -> Result<PoolBuilder<A>, Refused>,
        must_wait: bool,
    ) -> Result<Value, Refused> {
        let pool = make(self.gpu.device.clone())?.build();
        let buffer = pool.allocate_on(&self.on[0], BYTES).map_err(|e| failed(&e))?;
        self.slow(&self.on[0])?;
        Self::fill(&buffer, 1, &self.on[0])?;
        drop(buffer);
        let began = Instant::now();
        let bytes = pool.clear().map_err(|e| failed(&e))?;
        let waited = self.waited(began.elapsed());
        let code = call!(cuCtxSynchronize());
        let good = code == 0 && (self.busy.is_none() || waited == must_wait);
        Ok(json!({ "bytes": bytes, "host_waited": waited, "code": code, "good": good }))
    }

    pub(super) fn graph(&self) -> Result<Value, Refused> {
        let pool = blocking(self.gpu.device.clone())?.build();
        let (s, t) = (&self.on[0], &self.on[1]);
        // SAFETY: the captured work uses memory of the capture only.
        let capture = unsafe { CudaCapture::begin(&pool, s) }?;
        let scratch = pool.allocate_on(s, BYTES).map_err(|e| failed(&e))?;
        let at = Self::fill(&scratch, 1, s)?;
        drop(scratch);
        let mut graph = capture.end()?;
        self.slow(s)?;
        graph.launch(s, &[])?;
        drop(graph);
        let next = pool.allocate_on(t, BYTES).map_err(|e| failed(&e))?;
        let new = Self::fill(&next, 2, t)?;
        let good = Self::has(new, BYTES, 2)?;
        Ok(json!({ "same_address": at == new, "good": good }))
    }

    pub(super) fn writer(&self) -> Result<Value, Refused> {
        let pool = BucketPool::new(CudaAsyncAllocator::new(self.gpu.device.clone(), 0)?);
        let buffer = pool.allocate_on(&self.on[0], BYTES).map_err(|e| failed(&e))?;
        Self::fill(&buffer, 1, &self.on[0])?;
        self.gpu.streams[0].synchronize()?;
        self.slow(&self.on[0])?;
        Self::fill(&buffer, 7, &self.on[0])?;
        let slice = into_slice::<u8>(buffer.detach(), &self.gpu.streams[0])?;
        let shown = self.gpu.streams[1].clone_dtoh(&slice)?;
        self.gpu.streams[1].synchronize()?;
        Ok(json!({ "good": shown.iter().all(|byte| *byte == 7) }))
    }

    /// A capture uses two buffers that one stream wrote, the later one after an event.
    pub(super) fn launch(&self) -> Result<Value, Refused> {
        let pool = blocking(self.gpu.device.clone())?.build();
        let (c, s, other) = (&self.on[0], &self.on[1], &self.on[2]);
        let allocate = |on| pool.allocate_on(on, BYTES).map_err(|e| failed(&e));
        let (a, b, out) = (allocate(c)?, allocate(c)?, allocate(s)?);
        Self::fill(&a, 1, c)?;
        Self::fill(&b, 1, c)?;
        drop(b.on(other)?); // an event on `c`
        self.slow(c)?;
        Self::fill(&a, 9, c)?;
        // SAFETY: the buffers outlive the graph.
        let capture = unsafe { CudaCapture::begin(&pool, s) }?;
        let to = {
            let (from, to) = (a.on(s)?, out.on(s)?);
            drop(b.on(s)?);
            let (bytes, stream) = (usize::try_from(BYTES).unwrap_or(0), s.raw().cu_stream());
            let copied = call!(cuMemcpyDtoDAsync_v2(to.as_ptr(), from.as_ptr(), bytes, stream));
            done(copied, "cuMemcpyDtoDAsync")?;
            to.as_ptr()
        };
        let mut graph = capture.end()?;
        graph.launch(s, &[])?;
        let good = Self::has(to, BYTES, 9)?;
        Ok(json!({ "good": good }))
    }

    pub(super) fn recorded(&self) -> Result<Value, Refused> {
        let pool = BucketPool::new(CudaPinnedAllocator::on(self.gpu.device.clone()));
        let s = &self.on[0];
        let mut buffer = pool.allocate_on(s, BYTES).map_err(|e| failed(&e))?;
        buffer.record_stream(s)?;
        let place = buffer.bytes_mut()?.as_ptr();
        let mut source = 0;
        done(call!(cuMemAlloc_v2(&raw mut source, 4 << 20)), "cuMemAlloc")?;
        let none = std::ptr::null_mut();
        done(call!(cuMemsetD8Async(source, 5, 4 << 20, none)), "cuMemsetD8Async")?;
        done(call!(cuCtxSynchronize()), "cuCtxSynchronize")?;
        self.slow(s)?;
        let copied = call!(cuMemcpyDtoHAsync_v2(
            place.cast_mut().cast(),
            source,
            4 << 20,
            s.raw().cu_stream()
        ));
        done(copied, "cuMemcpyDtoHAsync")?;
        drop(buffer);
        let mut next = pool.allocate_on(&self.on[1], BYTES).map_err(|e| failed(&e))?;
        let bytes = next.bytes_mut()?;
        bytes.fill(0);
        let same = std::ptr::eq(place, bytes.as_ptr());
        done(call!(cuCtxSynchronize()), "cuCtxSynchronize")?;
        let good = next.bytes()?.iter().all(|byte| *byte == 0);
        done(call!(cuMemFree_v2(source)), "cuMemFree")?;
        Ok(json!({ "same_address": same, "good": good }))
    }
}
