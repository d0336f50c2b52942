//! Training of a small transformer with candle, on one thread. The length of the sequences varies,
//! so that each step has other sizes than the step before.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, ops::softmax};

const WIDTH: usize = 128;
const BATCH: usize = 4;
const VOCABULARY: usize = 512;

struct Layer {
    queries: Linear,
    keys: Linear,
    values: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(from: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            queries: linear(WIDTH, WIDTH, from.pp("queries"))?,
            keys: linear(WIDTH, WIDTH, from.pp("keys"))?,
            values: linear(WIDTH, WIDTH, from.pp("values"))?,
            up: linear(WIDTH, 4 * WIDTH, from.pp("up"))?,
            down: linear(4 * WIDTH, WIDTH, from.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (queries, keys) = (self.queries.forward(x)?, self.keys.forward(x)?);
        let scores = (queries.matmul(&keys.t()?)? * (WIDTH as f64).powf(-0.5))?;
        let mixed = softmax(&scores, 2)?.matmul(&self.values.forward(x)?)?;
        let x = (x + mixed)?;
        let hidden = self.up.forward(&x)?.gelu()?;
        &x + self.down.forward(&hidden)?
    }
}

/// Runs `steps` training steps.
pub fn train(steps: usize) -> Result<()> {
    let device = Device::Cpu;
    let variables = VarMap::new();
    let from = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let table = from.get((VOCABULARY, WIDTH), "table")?;
    let layers: Result<Vec<Layer>> = (0..3).map(|n| Layer::new(from.pp(n))).collect();
    let (layers, head) = (layers?, linear(WIDTH, VOCABULARY, from.pp("head"))?);
    let mut optimizer = SGD::new(variables.all_vars(), 0.01)?;
    let mut random = 0x9E37_79B9_u32;
    for _ in 0..steps {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let length = 24 + (random % 200) as usize;
        let token = |at| (at as u32).wrapping_mul(random) % VOCABULARY as u32;
        let tokens: Vec<u32> = (0..BATCH * length).map(token).collect();
        let tokens = Tensor::from_vec(tokens, BATCH * length, &device)?;
        let mut x = table.embedding(&tokens)?.reshape((BATCH, length, WIDTH))?;
        for layer in &layers {
            x = layer.forward(&x)?;
        }
        let logits = head.forward(&x)?.reshape((BATCH * length, VOCABULARY))?;
        let loss = candle_nn::loss::cross_entropy(&logits, &tokens)?;
        optimizer.backward_step(&loss)?;
    }
    Ok(())
}
