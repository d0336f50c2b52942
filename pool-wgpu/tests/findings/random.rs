//! Frames at random on three threads: own buffers, a mesh that all read, textures, uploads between
//! commands, prologues and drops. Each byte that comes back is the owner's own.
//!
//! `BUCKETPOOL_STEPS` is the number of steps of each thread, `BUCKETPOOL_SEED` replays one.

use crate::encoder;
use crate::present::devices;
use pool_core::{BucketPool, KIB, MIB, PooledBuffer, Why};
use pool_wgpu::{ReadBack, ReadBacks, Scope, Textures, Uploads, WgpuAllocator};
use std::sync::Mutex;
use std::thread;
use wgpu::{
    CommandEncoder, Extent3d, TexelCopyBufferLayout, TextureDescriptor, TextureDimension,
    TextureFormat, TextureUsages,
};

/// Bytes of a side of a texture's texels, and of a row.
const SIDE: u32 = 16;

type Buffer = PooledBuffer<WgpuAllocator>;

/// What all threads use.
struct World {
    device: WgpuAllocator,
    pool: BucketPool<WgpuAllocator>,
    uploads: Uploads,
    backs: ReadBacks,
    textures: Textures,
    /// A mesh of one byte, which is made anew now and then; the buffer is never written again.
    mesh: Mutex<(std::sync::Arc<Buffer>, u8)>,
}

/// A sequence of numbers (xorshift; Marsaglia, 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(1 + self.below(255)).unwrap()
    }
}

/// A frame of one thread: its scope, the program's commands, and what must come back.
struct Frame<'w> {
    world: &'w World,
    scope: Scope,
    commands: CommandEncoder,
    expected: Vec<(ReadBack, Vec<u8>, &'static str)>,
}

fn numbered(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(otherwise)
}

impl World {
    fn new(device: WgpuAllocator) -> Self {
        let pool = BucketPool::new(device.clone());
        let (uploads, backs) = (device.uploads(16 * KIB, MIB), device.read_backs(MIB));
        let textures = device.textures();
        let mesh = Self::mesh(&device, &pool, &uploads, 1);
        Self { device, pool, uploads, backs, textures, mesh: Mutex::new((mesh.into(), 1)) }
    }

    fn mesh(
        device: &WgpuAllocator,
        pool: &BucketPool<WgpuAllocator>,
        uploads: &Uploads,
        byte: u8,
    ) -> Buffer {
        let mut scope = device.scope();
        let mesh = scope.take(pool, KIB).unwrap();
        scope.upload(uploads, &mesh.on(&scope.stream()).unwrap(), 0, &[byte; 1024]).unwrap();
        scope.submit().unwrap();
        mesh
    }
}

impl<'w> Frame<'w> {
    fn begin(world: &'w World) -> Self {
        let (scope, commands) = (world.device.scope(), encoder(&world.device));
        Self { world, scope, commands, expected: Vec::new() }
    }

    fn expect(&mut self, buffer: &Buffer, bytes: Vec<u8>, what: &'static str) {
        let len = bytes.len() as u64;
        let (commands, backs) = (&mut self.commands, &self.world.backs);
        let back = if self.expected.len().is_multiple_of(2) {
            self.scope.read_back_in(commands, backs, buffer, 0, len).unwrap()
        } else {
            let from = self.scope.lend_to_read(buffer).unwrap();
            let (back, target) = self.scope.read_back_target(commands, backs, len).unwrap();
            commands.copy_buffer_to_buffer(&from, 0, &target, 0, len);
            back
        };
        self.expected.push((back, bytes, what));
    }

    /// A temporary: it reads as zeroes, and then as what is written between commands.
    fn temporary(&mut self, random: &mut Random) {
        let bytes = 256 << random.below(4);
        let buffer = self.scope.take(&self.world.pool, bytes).unwrap();
        let lent = (random.below(2) == 0).then(|| self.scope.lend(&buffer).unwrap());
        drop(lent); // commands that copy have it all the same
        let len = usize::try_from(bytes).unwrap();
        self.expect(&buffer, vec![0; len], "a temporary");
        for _ in 0..random.below(3) {
            let byte = random.byte();
            let (commands, uploads) = (&mut self.commands, &self.world.uploads);
            self.scope.upload_in(commands, uploads, &buffer, 0, &vec![byte; len]).unwrap();
            self.expect(&buffer, vec![byte; len], "an upload between commands");
        }
    }

    /// A buffer of the thread, which it keeps; uploads run ahead of all commands.
    fn own(&mut self, kept: &mut Option<(Buffer, u8)>, random: &mut Random) {
        if random.below(4) == 0 {
            *kept = None;
        }
        let (buffer, byte) = kept.get_or_insert_with(|| {
            let buffer = self.scope.take(&self.world.pool, KIB).unwrap();
            let byte = random.byte();
            let on = self.scope.stream();
            let view = buffer.on(&on).unwrap();
            self.scope.upload(&self.world.uploads, &view, 0, &[byte; 1024]).unwrap();
            drop(view);
            (buffer, byte)
        });
        let _lent = self.scope.lend(buffer).unwrap();
        let expected = vec![*byte; 1024];
        let buffer = &*buffer;
        let on = self.scope.stream();
        let view = buffer.read_on(&on).unwrap();
        let (commands, backs) = (&mut self.commands, &self.world.backs);
        let back = self.scope.read_back_in(commands, backs, &view, 0, KIB).unwrap();
        self.expected.push((back, expected, "a buffer that is kept"));
    }

    /// The mesh that all threads read, or a new one in its place.
    fn shared(&mut self, random: &mut Random) {
        let (mesh, byte) = self.world.mesh.lock().unwrap().clone();
        let _lent = self.scope.lend_to_read(&mesh).unwrap();
        self.expect(&mesh, vec![byte; 1024], "the mesh");
        if random.below(8) == 0 {
            let byte = random.byte();
            let World { device, pool, uploads, .. } = self.world;
            let new = World::mesh(device, pool, uploads, byte);
            *self.world.mesh.lock().unwrap() = (new.into(), byte);
        }
    }

    /// A pooled texture, which the frame fills and reads.
    fn texture(&mut self, random: &mut Random) {
        let size = Extent3d { width: SIDE, height: SIDE, depth_or_array_layers: 1 };
        let texture = self.scope.take_texture(
            &self.world.textures,
            &TextureDescriptor {
                label: None,
                size,
                mip_level_count: 1,
                sample_count: 1,
                dimension: TextureDimension::D2,
                format: TextureFormat::R8Unorm,
                usage: TextureUsages::COPY_SRC | TextureUsages::COPY_DST,
                view_formats: &[],
            },
        );
        let texture = texture.unwrap();
        let texture = if random.below(2) == 0 { texture.clone() } else { texture };
        let data = vec![random.byte(); (SIDE * SIDE) as usize];
        let layout =
            TexelCopyBufferLayout { bytes_per_row: Some(SIDE), ..TexelCopyBufferLayout::default() };
        let place = texture.as_image_copy();
        let (uploads, backs) = (&self.world.uploads, &self.world.backs);
        let uploaded = if random.below(2) == 0 {
            self.scope.upload_texture(uploads, place, &data, layout, size)
        } else {
            let data = (&data[..], layout);
            self.scope.upload_texture_in(&mut self.commands, uploads, place, data, size)
        };
        uploaded.unwrap();
        let commands = &mut self.commands;
        let back = self.scope.read_back_texture_in(commands, backs, place, size).unwrap();
        // The device of wgpu's tests copies no texels.
        if self.world.device.device().adapter_info().backend != wgpu::Backend::Noop {
            self.expected.push((back, data, "a texture"));
        }
    }

    /// Ends the frame, and looks at what it brought.
    fn end(self, random: &mut Random) {
        let Self { world, scope, mut commands, expected } = self;
        let is_dropped = match random.below(8) {
            0 => {
                drop((scope, commands));
                true
            }
            1..4 => {
                let prologue = scope.prologue(&mut commands).unwrap();
                world.device.queue().submit(prologue.into_iter().chain([commands.finish()]));
                false
            }
            _ => {
                scope.submit_with(commands).unwrap();
                false
            }
        };
        for (back, bytes, what) in expected {
            match back.wait(|shown| shown == bytes) {
                Ok(is_right) => assert!(is_right && !is_dropped, "{what} shows other bytes"),
                Err(error) => assert!(is_dropped && error.why == Why::NotSubmitted, "{error}"),
            }
        }
    }
}

/// Steps of one thread.
fn frames(world: &World, seed: u64, steps: u64) {
    let (mut random, mut kept, mut done) = (Random(seed | 1), None, 0);
    while done < steps {
        let mut frame = Frame::begin(world);
        let had = kept.is_some();
        for _ in 0..=random.below(6) {
            match random.below(10) {
                0 | 1 => frame.temporary(&mut random),
                2 | 3 => frame.shared(&mut random),
                4 | 5 => frame.texture(&mut random),
                6 => frame.scope.end_step(),
                7 => drop(frame.scope.flush().unwrap()),
                _ => frame.own(&mut kept, &mut random),
            }
            done += 1;
        }
        // What a dropped frame was to upload did not come.
        let drops = Random(random.0).below(8) == 0;
        frame.end(&mut random);
        if drops || !had && kept.is_none() {
            kept = None;
        }
    }
}

#[test]
fn each_owner_sees_its_own_bytes() {
    let (seed, steps) = (numbered("BUCKETPOOL_SEED", 1), numbered("BUCKETPOOL_STEPS", 300));
    eprintln!("BUCKETPOOL_SEED={seed} BUCKETPOOL_STEPS={steps}");
    for device in devices() {
        let world = World::new(device);
        thread::scope(|threads| {
            for thread in 0..3 {
                let world = &world;
                let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(thread * 2 + 1);
                threads.spawn(move || frames(world, seed, steps));
            }
        });
        let faults = world.device.faults();
        let dropped = "drop a scope whose buffers may be in another encoder: use its prologue";
        assert!(faults.iter().all(|fault| fault.call == dropped), "{faults:?}");
    }
}
