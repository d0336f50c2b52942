//! What is refused, and what is said of it.

use crate::groups::layout_of_storage;
use crate::present::{devices, noop, noop_by};
use crate::{encoder, own};
use pool_core::{ArenaConfig, BucketPool, GIB, KIB, MIB, Why};
use pool_wgpu::{Bindable, BindingArray, ReadWrite, Unpooled, Usage, WgpuAllocator, WgpuSlabs};
use std::sync::{Arc, Mutex};
use wgpu::{
    BufferDescriptor, BufferUsages, DeviceDescriptor, Extent3d, Features, Limits,
    TextureDescriptor, TextureDimension, TextureFormat, TextureUsages,
};

/// wgpu does not compare instances: it would bind the buffer that has the same number here.
#[test]
fn a_view_of_another_device_is_bound_by_none() {
    let features = Features::MAPPABLE_PRIMARY_BUFFERS | Features::BUFFER_BINDING_ARRAY;
    let [one, other] = [(); 2]
        .map(|()| noop_by(&DeviceDescriptor { required_features: features, ..Default::default() }));
    let pool = BucketPool::new(one.clone());
    let slabs = WgpuSlabs::<ReadWrite>::new(one.clone());
    let slabs = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
    let data = one.frame_data(BufferUsages::STORAGE, 64 * KIB, MIB).unwrap();
    let mut scope = one.scope();
    let on = scope.stream();
    let (whole, piece) = (scope.take(&pool, KIB).unwrap(), slabs.allocate_on(&on, KIB).unwrap());
    let (whole, piece) = (whole.on(&on).unwrap(), piece.on(&on).unwrap());
    let placed = scope.place(&data, &[1; 256]).unwrap();
    let layout = layout_of_storage(&other);
    let bind = |view: &dyn Bindable| {
        other.bind_group(&layout, &[(0, view)]).map(drop).map_err(|error| error.why)
    };
    let array: [&dyn Bindable; 1] = [&whole];
    let views: [&dyn Bindable; 5] =
        [&whole, &piece, &placed, &whole.part(0..256), &BindingArray(&array)];
    for view in views {
        assert_eq!(bind(view), Err(Why::Foreign));
    }
    assert!(one.bind_group(&layout_of_storage(&one), &[(0, &whole)]).is_ok());
    // A copy says the same, and not that both are one buffer.
    let theirs = BucketPool::new(other.clone());
    let mut scope = other.scope();
    let buffer = scope.take(&theirs, KIB).unwrap();
    let on = scope.stream();
    let view = buffer.on(&on).unwrap();
    let refused = scope.copy((&whole, 0), (&view, 0), KIB).unwrap_err();
    assert_eq!(refused.why, Why::Foreign);
}

/// wgpu tracks a slab as a whole; what the program may have of it is a piece.
#[test]
fn a_piece_of_a_slab_is_read_though_its_neighbour_was_lent() {
    for device in devices() {
        let slabs = WgpuSlabs::<ReadWrite>::new(device.clone());
        let pool = BucketPool::builder(slabs).arena(ArenaConfig::segments(MIB)).build();
        let (backs, target) = (device.read_backs(MIB), own(&device, KIB));
        let mut scope = device.scope();
        let on = scope.stream();
        let pieces = [(); 2].map(|()| pool.allocate_on(&on, KIB).unwrap());
        let views = [0, 1].map(|at: usize| pieces[at].on(&on).unwrap());
        let _lent = views[1].buffer().unwrap().clone();
        let to = Unpooled(&target);
        assert!(scope.read_back(&backs, &views[0], 0, 64).is_ok());
        assert!(scope.copy((&views[0], 0), (&to, 0), 64).is_ok());
        for refused in [
            scope.read_back(&backs, &views[1], 0, 64).map(drop),
            scope.copy((&views[1], 0), (&to, 0), 64),
        ] {
            assert_eq!(refused.unwrap_err().why, Why::Unsupported, "the program has it");
        }
    }
}

/// Each refusal that the pool returns as an error, in wgpu's own words.
#[test]
fn what_wgpu_says_of_a_refusal_is_passed_on() {
    for device in devices() {
        // wgpu's own handler is not told, which would panic.
        let said = Arc::<Mutex<Vec<String>>>::default();
        let says = said.clone();
        device.on_refused(move |text| says.lock().unwrap().push(text.to_owned()));
        let heard = |of: &str| {
            let said = std::mem::take(&mut *said.lock().unwrap());
            assert!(said.iter().any(|text| text.contains(of)), "{of} in {said:?}");
        };
        let pool = BucketPool::new(device.clone());
        let scope = device.scope();
        let on = scope.stream();
        let uniform = Usage::new(BufferUsages::UNIFORM);
        let wrong = pool.allocate_kind(&on, KIB, uniform).unwrap();
        let layout = layout_of_storage(&device);
        assert!(device.bind_group(&layout, &[(0, &wrong.on(&on).unwrap())]).is_err());
        heard("STORAGE");
        assert!(pool.allocate_kind(&on, KIB, Usage::new(BufferUsages::BLAS_INPUT)).is_err());
        heard("Device::create_buffer");
        let none = Extent3d { width: 0, height: 1, depth_or_array_layers: 1 };
        assert!(scope.take_texture(&device.textures(), &described(none)).is_err());
        heard("Device::create_texture");
        let (gone, mut commands) = (own(&device, KIB), encoder(&device));
        commands.clear_buffer(&gone, 0, None);
        gone.destroy();
        assert!(scope.submit_with(commands).is_err());
        heard("destroyed");
        let mut commands = encoder(&device);
        commands.clear_buffer(&own(&device, KIB), 2, Some(2)); // no whole word
        assert!(device.scope().submit_with(commands).is_err());
        heard("ALIGNMENT");
        assert_eq!(device.fault_count(), 0, "the calls have returned them");
    }
}

fn described(size: Extent3d) -> TextureDescriptor<'static> {
    TextureDescriptor {
        label: None,
        size,
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format: TextureFormat::Rgba8Unorm,
        usage: TextureUsages::COPY_DST,
        view_formats: &[],
    }
}

/// The least limits that wgpu has: no storage at all.
#[test]
fn a_buffer_for_several_bindings_is_bound_as_what_it_can_be() {
    let required_limits = Limits::downlevel_webgl2_defaults();
    let device = noop_by(&DeviceDescriptor { required_limits, ..DeviceDescriptor::default() });
    let pool = BucketPool::new(device.clone());
    let scope = device.scope();
    let on = scope.stream();
    let bind = |usages, bytes| {
        let buffer = pool.allocate_kind(&on, bytes, Usage::new(usages)).unwrap();
        let view = buffer.on(&on).unwrap();
        view.binding().map(drop).map_err(|error| (error.why, error.code))
    };
    assert_eq!(bind(BufferUsages::UNIFORM | BufferUsages::STORAGE, KIB), Ok(()));
    assert_eq!(bind(BufferUsages::UNIFORM, KIB), Ok(()));
    assert_eq!(bind(BufferUsages::UNIFORM, 60 * KIB), Err((Why::TooLarge, 16 << 10)));
    let both = BufferUsages::UNIFORM | BufferUsages::STORAGE;
    assert_eq!(bind(both, 60 * KIB), Err((Why::TooLarge, 16 << 10)));
}

#[test]
fn a_chunk_is_no_larger_than_a_buffer_of_the_device() {
    let device = noop();
    let target = own(&device, KIB);
    let most = device.device().limits().max_buffer_size;
    assert!(most < GIB);
    let uploads = device.uploads(GIB, GIB);
    let mut scope = device.scope();
    scope.upload(&uploads, &Unpooled(&target), 0, &[1; 4]).unwrap();
    assert!(uploads.reserved_bytes() <= most);
    let data = device.frame_data(BufferUsages::COPY_SRC, GIB, GIB).unwrap();
    assert!(scope.place(&data, &[1; 4]).is_ok());
    let _: &WgpuAllocator = &device;
}

/// How a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// By a command that wgpu refuses when it ends the encoder.
    AtTheEnd,
    /// By a buffer that was destroyed since.
    AtTheSubmission,
    /// By zeroing of a block that the program destroyed.
    ByZeroing,
    /// By an upload to a buffer that was destroyed.
    ByAnUpload,
}

#[test]
fn a_refusal_is_told_once() {
    use Refused::{AtTheEnd, AtTheSubmission, ByAnUpload, ByZeroing};
    for device in devices() {
        let said = Arc::<Mutex<Vec<String>>>::default();
        let says = said.clone();
        device.on_refused(move |text| says.lock().unwrap().push(text.to_owned()));
        for how in [AtTheEnd, AtTheSubmission, ByZeroing, ByAnUpload] {
            for own_encoder in [false, true] {
                let (pool, uploads) = (BucketPool::new(device.clone()), device.uploads(KIB, MIB));
                let (gone, mut commands) = (own(&device, KIB), encoder(&device));
                let uncopied = device.device().create_buffer(&BufferDescriptor {
                    label: None,
                    size: KIB,
                    usage: BufferUsages::VERTEX,
                    mapped_at_creation: false,
                });
                let before = device.scope();
                let block = before.take(&pool, KIB).unwrap();
                let lent = before.lend(&block).unwrap();
                before.submit_with(encoder(&device)).unwrap();
                drop(block);
                let mut scope = device.scope();
                let _again = scope.take(&pool, KIB).unwrap();
                if how == ByZeroing {
                    lent.destroy();
                }
                if how == ByAnUpload {
                    scope.upload(&uploads, &Unpooled(&gone), 0, &[1; 64]).unwrap();
                }
                let of = if own_encoder { scope.encoder() } else { &mut commands };
                match how {
                    AtTheEnd => of.clear_buffer(&uncopied, 0, None),
                    AtTheSubmission => of.clear_buffer(&gone, 0, None),
                    ByZeroing | ByAnUpload => {}
                }
                gone.destroy();
                let ended = if own_encoder { scope.submit() } else { scope.submit_with(commands) };
                assert_eq!(ended.map_err(|error| error.why).err(), Some(Why::NotSubmitted));
                let said = std::mem::take(&mut *said.lock().unwrap());
                assert_eq!(said.len(), 1, "{how:?}, own encoder: {own_encoder}: {said:#?}");
            }
        }
    }
}
