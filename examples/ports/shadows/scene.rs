//! What both renderers draw: boxes above a floor, which a light from one side casts shadows of.

use bucketpool::wgpu::wgpu::{
    Extent3d, TextureDescriptor, TextureDimension, TextureFormat, TextureUsages,
};

/// Bytes of an entity in a uniform buffer: a matrix and a colour, where a dynamic offset may begin.
pub(crate) const ENTITY: u64 = 80;
pub(crate) const STRIDE: usize = 256;
/// Bytes of a vertex: a position and a normal.
pub(crate) const VERTEX: u64 = 24;
pub(crate) const PICTURE: TextureFormat = TextureFormat::Rgba8Unorm;
pub(crate) const DEPTH: TextureFormat = TextureFormat::Depth32Float;
/// Texels of a side of the shadow map.
const SHADOWS: u32 = 256;

type Vector = [f32; 3];
/// By columns.
type Matrix = [[f32; 4]; 4];

/// A frame: the bytes of its uniforms, and its textures.
pub(crate) struct Frame {
    pub(crate) globals: Vec<u8>,
    /// One behind the other, at multiples of [`STRIDE`].
    pub(crate) entities: Vec<u8>,
    pub(crate) size: Extent3d,
}

impl Frame {
    /// The dynamic offsets of the entities.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = u32> {
        (0..self.entities.len()).step_by(STRIDE).map(|at| u32::try_from(at).unwrap_or(0))
    }

    pub(crate) fn depth(&self) -> TextureDescriptor<'static> {
        texture(self.size, DEPTH, TextureUsages::RENDER_ATTACHMENT)
    }

    pub(crate) fn picture(&self) -> TextureDescriptor<'static> {
        texture(self.size, PICTURE, TextureUsages::RENDER_ATTACHMENT | TextureUsages::COPY_SRC)
    }
}

/// The shadow map.
pub(crate) fn shadow_map() -> TextureDescriptor<'static> {
    let usage = TextureUsages::RENDER_ATTACHMENT | TextureUsages::TEXTURE_BINDING;
    texture(square(SHADOWS), DEPTH, usage)
}

fn square(side: u32) -> Extent3d {
    Extent3d { width: side, height: side, depth_or_array_layers: 1 }
}

fn texture(
    size: Extent3d,
    format: TextureFormat,
    usage: TextureUsages,
) -> TextureDescriptor<'static> {
    TextureDescriptor {
        label: None,
        size,
        mip_level_count: 1,
        sample_count: 1,
        dimension: TextureDimension::D2,
        format,
        usage,
        view_formats: &[],
    }
}

/// The frame of a number: boxes that turn, of which some come and go, in a window that is resized now and then.
pub(crate) fn frame(number: u32) -> Frame {
    let time = number as f32 / 10.0;
    let towards_light = unit([0.5 + 0.3 * time.sin(), 1.0, 0.4]);
    let (light, camera) = (look(towards_light, 3.0), look(unit([-0.4, 0.8, 1.0]), 2.2));
    let mut globals = [light.as_flattened(), camera.as_flattened()].concat();
    globals.extend(towards_light.iter().chain(&[0.0]));
    let floor = (placed([0.0, -0.6, 0.0], [2.0, 0.1, 2.0], 0.0), [0.8, 0.8, 0.8, 1.0]);
    let boxes = (0..6 + number % 9).map(|at| {
        let turn = at as f32 * 1.7 + time;
        let place = [turn.cos() * 1.2, 0.3 * (turn * 2.0).sin(), turn.sin() * 1.2];
        let shade = at as f32 / 16.0;
        (placed(place, [0.22; 3], turn * 3.0), [1.0 - shade, 0.4, shade, 1.0])
    });
    let mut entities = Vec::new();
    for (at, (matrix, colour)) in [floor].into_iter().chain(boxes).enumerate() {
        entities.resize(at * STRIDE, 0);
        entities.extend(bytes(matrix.as_flattened()));
        entities.extend(bytes(&colour));
    }
    entities.resize(entities.len().next_multiple_of(STRIDE), 0);
    let size = square([100, 128, 150][number as usize / 8 % 3]);
    Frame { globals: bytes(&globals), entities, size }
}

/// The vertices of a box from -1 to 1.
pub(crate) fn vertices() -> Vec<u8> {
    let mut floats = Vec::new();
    for axis in 0..3 {
        for side in [-1.0, 1.0] {
            for (u, v) in
                [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
            {
                let (mut position, mut normal) = ([0.0; 3], [0.0; 3]);
                (position[axis], normal[axis]) = (side, side);
                (position[(axis + 1) % 3], position[(axis + 2) % 3]) = (u, v);
                floats.extend([position, normal].concat());
            }
        }
    }
    bytes(&floats)
}

/// A matrix that shows the points up to `half` beside the middle, seen from this direction.
fn look(from: Vector, half: f32) -> Matrix {
    let forward = from.map(|x| -x);
    let right = unit(cross(forward, [0.0, 1.0, 0.0]));
    let up = cross(right, forward);
    let column = |at: usize| [right[at] / half, up[at] / half, forward[at] / 8.0, 0.0];
    [column(0), column(1), column(2), [0.0, 0.0, 0.5, 1.0]]
}

/// A matrix that scales, turns around the vertical axis, and moves.
fn placed(to: Vector, scale: Vector, turn: f32) -> Matrix {
    let (sin, cos) = turn.sin_cos();
    let [x, y, z] = scale;
    [
        [cos * x, 0.0, -sin * x, 0.0],
        [0.0, y, 0.0, 0.0],
        [sin * z, 0.0, cos * z, 0.0],
        [to[0], to[1], to[2], 1.0],
    ]
}

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

fn unit(of: Vector) -> Vector {
    let length = of.iter().map(|x| x * x).sum::<f32>().sqrt();
    of.map(|x| x / length)
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}
