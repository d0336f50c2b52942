//! Memory of a device that nobody has: it ages as scopes are opened, and goes back where memory is short.

use parking_lot::Mutex;
use pool_core::{DeviceError, Why};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};

/// Textures or chunks that wait for an owner.
pub(crate) trait Spare: Send + Sync {
    /// Gives all of them back to wgpu. Returns whether there were any.
    fn clear(&self) -> bool;

    /// Gives back what served none of the last scopes, after so many were opened.
    fn age(&self, _opened: u64) {}
}

/// All that is idle on one device.
#[derive(Default)]
pub(crate) struct IdleMemory(Mutex<Vec<Weak<dyn Spare>>>);

impl IdleMemory {
    /// Adds memory, for as long as somebody has it.
    pub(crate) fn add(&self, memory: Weak<dyn Spare>) {
        let mut all = self.0.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(memory);
    }

    pub(crate) fn age(&self, opened: u64) {
        self.living().iter().for_each(|memory| memory.age(opened));
    }

    /// Makes something, and once more where memory is short and idle memory went back, of which `poll` lets the
    /// device hear. The caller holds no lock of such memory.
    pub(crate) fn make<T>(
        &self,
        poll: impl FnOnce(),
        make: impl Fn() -> Result<T, DeviceError>,
    ) -> Result<T, DeviceError> {
        match make() {
            Err(error) if error.why == Why::OutOfMemory && self.clear() => {
                poll();
                make()
            }
            made => made,
        }
    }

    fn clear(&self) -> bool {
        let cleared = self.living().iter().filter(|memory| memory.clear()).count();
        cleared > 0
    }

    /// Without the lock while they are asked.
    fn living(&self) -> Vec<Arc<dyn Spare>> {
        self.0.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Things that wait for an owner, each of a kind, which is a number: they are found by their kinds, and the oldest
/// goes first.
pub(crate) struct Aged<T> {
    /// By kind and age.
    all: BTreeMap<(u64, u64), T>,
    /// The kinds by age.
    kinds: BTreeMap<u64, u64>,
    last: u64,
}

/// Where one of them is.
pub(crate) type Place = (u64, u64);

impl<T> Aged<T> {
    /// Adds a thing, which is the newest.
    pub(crate) fn push(&mut self, kind: u64, thing: T) {
        self.last += 1;
        self.kinds.insert(self.last, kind);
        self.all.insert((kind, self.last), thing);
    }

    /// Those of some kinds, the oldest of each first.
    pub(crate) fn of(
        &self,
        kinds: RangeInclusive<u64>,
    ) -> impl DoubleEndedIterator<Item = (Place, &T)> {
        let (least, most) = kinds.into_inner();
        let places = (least, 0)..=(most.max(least), u64::MAX);
        self.all.range(places).map(|(place, thing)| (*place, thing)).filter(move |_| least <= most)
    }

    pub(crate) fn oldest(&self) -> Option<(Place, &T)> {
        let (age, kind) = self.kinds.first_key_value()?;
        let place = (*kind, *age);
        self.all.get(&place).map(|thing| (place, thing))
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<T> {
        self.kinds.remove(&place.1);
        self.all.remove(&place)
    }

    /// Takes all of them.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.kinds.clear();
        std::mem::take(&mut self.all).into_values()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl<T> Default for Aged<T> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), kinds: BTreeMap::new(), last: 0 }
    }
}

#[cfg(all(test, feature = "noop"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::{DeviceError, Why};
    use crate::{Textures, WgpuAllocator};
    use pool_core::KIB;
    use std::cell::Cell;
    use wgpu::{Extent3d, TextureDescriptor, TextureDimension, TextureFormat, TextureUsages};

    fn with_an_idle_texture() -> (WgpuAllocator, Textures) {
        let (device, queue) = wgpu::Device::noop(&wgpu::DeviceDescriptor::default());
        let device = WgpuAllocator::new(device, queue);
        let targets = device.textures();
        let scope = device.scope();
        let descriptor = TextureDescriptor {
            label: None,
            size: Extent3d { width: 4, height: 4, depth_or_array_layers: 1 },
            mip_level_count: 1,
            sample_count: 1,
            dimension: TextureDimension::D2,
            format: TextureFormat::Rgba8Unorm,
            usage: TextureUsages::COPY_DST,
            view_formats: &[],
        };
        drop(scope.take_texture(&targets, &descriptor).unwrap());
        (device, targets)
    }

    #[test]
    fn where_memory_is_short_idle_textures_and_chunks_go_and_it_is_tried_again() {
        let (device, targets) = with_an_idle_texture();
        let (uploads, backs) = (device.uploads(KIB, 64 * KIB), device.read_backs(64 * KIB));
        let pool = pool_core::BucketPool::new(device.clone());
        let mut scope = device.scope();
        let buffer = scope.take(&pool, KIB).unwrap();
        scope.upload(&uploads, &buffer, 0, &[1; 1024]).unwrap();
        let back = scope.read_back(&backs, &buffer, 0, KIB).unwrap();
        scope.submit().unwrap();
        back.wait(|_| ()).unwrap();
        drop(back);
        assert!(uploads.reserved_bytes() > 0 && backs.reserved_bytes() > 0);
        let tries = Cell::new(0);
        let made = device.shared().make(|| {
            tries.set(tries.get() + 1);
            let has_idle = targets.idle() > 0 || targets.idle_bytes() > 0;
            match has_idle || uploads.reserved_bytes() + backs.reserved_bytes() > 0 {
                true => Err(DeviceError::new(Why::OutOfMemory, "a device that is full")),
                false => Ok(()),
            }
        });
        assert_eq!((made, tries.get()), (Ok(()), 2));
    }

    #[test]
    fn nothing_goes_for_other_errors_and_nothing_is_tried_in_vain() {
        let (device, targets) = with_an_idle_texture();
        let tries = Cell::new(0);
        let refuse = |why| {
            let fails = || -> Result<(), _> {
                tries.set(tries.get() + 1);
                Err(DeviceError::new(why, "a device"))
            };
            device.shared().make(fails).unwrap_err().why
        };
        assert_eq!(refuse(Why::Unsupported), Why::Unsupported);
        assert_eq!((targets.idle(), tries.get()), (1, 1));
        assert_eq!(refuse(Why::OutOfMemory), Why::OutOfMemory);
        assert_eq!((targets.idle(), tries.get()), (0, 3));
        assert_eq!(refuse(Why::OutOfMemory), Why::OutOfMemory);
        assert_eq!(tries.get(), 4, "there is nothing that could go");
    }
}
