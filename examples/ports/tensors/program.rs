//! What both runtimes run: operations on tensors by number, the kernels behind them, and the program of a frame.

use bucketpool::wgpu::wgpu::{
    BindGroup, BindGroupLayout, BindGroupLayoutDescriptor, BindGroupLayoutEntry, BindingType,
    BufferBindingType, CommandEncoder, ComputePassDescriptor, ComputePipeline,
    ComputePipelineDescriptor, Device, PipelineCompilationOptions, PipelineLayoutDescriptor,
    ShaderModuleDescriptor, ShaderSource, ShaderStages,
};

/// A tensor, before it has memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    pub(crate) id: u32,
    pub(crate) bytes: u64,
}

pub(crate) enum Op {
    Upload(Tensor, Vec<u8>),
    /// A kernel with what it is told, what it reads, what it writes, and how many elements that has.
    Launch(Kernel, [Tensor; 3], Tensor, u32),
    /// The tensor is not used any more.
    Free(Tensor),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kernel {
    Matmul,
    Add,
    Relu,
}

/// A pipeline of each kernel; all have one layout.
pub(crate) struct Kernels {
    pub(crate) layout: BindGroupLayout,
    pipelines: [ComputePipeline; 3],
}

/// All bindings are `read_write`, because pieces of one buffer are bound together.
const SOURCE: &str = "
@group(0) @binding(0) var<storage, read_write> shape: array<u32>;
@group(0) @binding(1) var<storage, read_write> a: array<i32>;
@group(0) @binding(2) var<storage, read_write> b: array<i32>;
@group(0) @binding(3) var<storage, read_write> to: array<i32>;
@compute @workgroup_size(64)
fn matmul(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x / shape[2];
    let column = id.x % shape[2];
    if row >= shape[0] { return; }
    var sum = 0;
    for (var at = 0u; at < shape[1]; at++) {
        sum += a[row * shape[1] + at] * b[at * shape[2] + column];
    }
    to[id.x] = sum;
}
@compute @workgroup_size(64)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < shape[0] * shape[2] { to[id.x] = a[id.x] + b[id.x % shape[2]]; }
}
@compute @workgroup_size(64)
fn relu(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < shape[0] * shape[2] { to[id.x] = max(a[id.x], 0) >> 4u; }
}";

impl Kernels {
    pub(crate) fn new(device: &Device) -> Self {
        let source = ShaderSource::Wgsl(SOURCE.into());
        let module = &device.create_shader_module(ShaderModuleDescriptor { label: None, source });
        let ty = BindingType::Buffer {
            ty: BufferBindingType::Storage { read_only: false },
            has_dynamic_offset: false,
            min_binding_size: None,
        };
        let visibility = ShaderStages::COMPUTE;
        let entry = |binding| BindGroupLayoutEntry { binding, visibility, ty, count: None };
        let entries = [0, 1, 2, 3].map(entry);
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let whole = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            bind_group_layouts: &[Some(&layout)],
            ..PipelineLayoutDescriptor::default()
        });
        let pipelines = ["matmul", "add", "relu"].map(|entry| {
            device.create_compute_pipeline(&ComputePipelineDescriptor {
                label: None,
                layout: Some(&whole),
                module,
                entry_point: Some(entry),
                compilation_options: PipelineCompilationOptions::default(),
                cache: None,
            })
        });
        Self { layout, pipelines }
    }

    pub(crate) fn launch(
        &self,
        encoder: &mut CommandEncoder,
        kernel: Kernel,
        group: &BindGroup,
        elements: u32,
    ) {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipelines[kernel as usize]);
        pass.set_bind_group(0, group, &[]);
        pass.dispatch_workgroups(elements.div_ceil(64), 1, 1);
    }
}

/// The program of a frame.
pub(crate) struct Program {
    pub(crate) ops: Vec<Op>,
    /// The tensor that it returns, which it does not free, and what that has then.
    pub(crate) out: Tensor,
    pub(crate) expected: Vec<u8>,
}

/// Columns of each layer's tensor. Between two of them are a matrix and a row that is added.
const WIDTHS: [usize; 7] = [48, 100, 64, 130, 20, 72, 10];

/// Builds a program: what the CPU computes beside it is what the device must.
struct Writer {
    ops: Vec<Op>,
    next: u32,
}

impl Writer {
    fn tensor(&mut self, elements: usize) -> Tensor {
        self.next += 1;
        Tensor { id: self.next, bytes: elements as u64 * 4 }
    }

    fn upload(&mut self, values: &[i32]) -> Tensor {
        let tensor = self.tensor(values.len());
        self.ops.push(Op::Upload(tensor, bytes(values)));
        tensor
    }

    /// A launch whose shape is a tensor too. It frees the shape and the first operand.
    fn launch(&mut self, kernel: Kernel, shape: [usize; 3], of: [Tensor; 2]) -> Tensor {
        let elements = shape[0] * shape[2];
        let shape = shape.map(|size| i32::try_from(size).unwrap_or(0));
        let (shape, to) = (self.upload(&shape), self.tensor(elements));
        let elements = u32::try_from(elements).unwrap_or(0);
        self.ops.push(Op::Launch(kernel, [shape, of[0], of[1]], to, elements));
        self.ops.extend([Op::Free(shape), Op::Free(of[0])]);
        to
    }
}

/// The program of a number: a model of six layers over so many rows. The first one uploads the model, whose
/// tensors live from then on.
pub(crate) fn program(number: u32) -> Program {
    let rows = 8 + number as usize * 7 % 5 * 8;
    let mut writer = Writer { ops: Vec::new(), next: 0 };
    let model: Vec<_> = WIDTHS
        .windows(2)
        .enumerate()
        .map(|(layer, widths)| {
            let [k, n] = [widths[0], widths[1]];
            let seed = u32::try_from(layer).unwrap_or(0);
            let (matrix, row) = (values(k * n, seed), values(n, seed + 100));
            (writer.upload(&matrix), writer.upload(&row), matrix, row)
        })
        .collect();
    if number > 0 {
        writer.ops.clear();
    }
    writer.next += number * 1000;
    let mut now = values(rows * WIDTHS[0], number + 1000);
    let mut tensor = writer.upload(&now);
    for (widths, (matrix, row, matrix_values, row_values)) in WIDTHS.windows(2).zip(&model) {
        let shape = [rows, widths[0], widths[1]];
        let product = writer.launch(Kernel::Matmul, shape, [tensor, *matrix]);
        let sum = writer.launch(Kernel::Add, shape, [product, *row]);
        tensor = writer.launch(Kernel::Relu, shape, [sum, *row]);
        now = layer(&now, matrix_values, row_values, [widths[0], widths[1]]);
    }
    Program { ops: writer.ops, out: tensor, expected: bytes(&now) }
}

/// What a layer computes: the product, the sum, and what is left of it.
fn layer(from: &[i32], matrix: &[i32], row: &[i32], columns: [usize; 2]) -> Vec<i32> {
    let of_row = |from: &[i32]| -> Vec<i32> {
        let mut sums = row.to_vec();
        for (factor, line) in from.iter().zip(matrix.chunks(columns[1])) {
            for (sum, other) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(factor.wrapping_mul(*other));
            }
        }
        sums.iter().map(|sum| (*sum).max(0) >> 4).collect()
    };
    from.chunks(columns[0]).flat_map(of_row).collect()
}

/// Numbers from -8 to 7.
fn values(many: usize, seed: u32) -> Vec<i32> {
    let value = |at: u32| at.wrapping_add(seed << 16).wrapping_mul(2_654_435_761) >> 28;
    (0..u32::try_from(many).unwrap_or(0)).map(|at| value(at).cast_signed() - 8).collect()
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
