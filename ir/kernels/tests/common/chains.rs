//! Calls of fused ops.

use memc_ir::attr::F32;
use memc_ir::ops::fused::{Arg, Body, Step};
use memc_ir::{DType, OpKind, TensorType, parse_op};
use memc_kernels::interp::Tensor;

use super::{Random, Sample};

fn fused(body: &str, outs: &str, operands: Vec<Tensor>) -> Sample {
    let op =
        parse_op("fused", &format!("{{body = \"{body}\", outs = {outs}}}")).unwrap_or_else(|e| panic!("{e}"));
    Sample { op, operands }
}

/// The results of a fused op from those of its steps.
pub(crate) fn by_steps(sample: &Sample, run: &mut dyn FnMut(Sample) -> Vec<Tensor>) -> Vec<Tensor> {
    let (OpKind::Fused { body, outs } | OpKind::FusedNorm { body, outs }) = &sample.op else {
        panic!("no fused op")
    };
    let (mut made, mut rest): (Vec<Tensor>, Vec<Tensor>) = Default::default();
    for step in &body.0 {
        let arg = |arg: &Arg| match *arg {
            Arg::Operand(x) => sample.operands[x as usize].clone(),
            Arg::Step(t) => made[t as usize].clone(),
        };
        let operands = step.args.iter().map(arg).collect();
        let mut results = run(Sample { op: step.op.clone(), operands }).into_iter();
        made.extend(results.next());
        rest.extend(results);
    }
    outs.iter().map(|&t| made[t as usize].clone()).chain(rest).collect()
}

/// Chains whose results are near to those in double precision.
pub(crate) fn chosen(r: &mut Random, s: u64) -> Vec<Sample> {
    let shape = [s, 3, 17];
    let step = || Tensor::i64(&[1], &[3]).unwrap();
    let mut all = vec![
        fused("add(x0, x1); gelu(t0)", "[1]", vec![r.f32(&shape), r.f32(&[17])]),
        fused("add(x1, x0); relu(t0); mul(t0, x1)", "[0, 1, 2]", vec![r.f32(&[s, 1, 17]), r.f32(&shape)]),
        fused(
            "dropout(x0, x1) {ratio = 0.25, seed = 7, stream = 1}; add(t0, x2)",
            "[1]",
            vec![r.f32(&shape), step(), r.f32(&shape)],
        ),
        fused(
            &format!(
                "random_mask(x0) {{ratio = 0.5, seed = 9, stream = 2, shape = [{s}, 3, 17]}}; \
                 mask_scale(x1, t0) {{scale = 2.0}}"
            ),
            "[0, 1]",
            vec![step(), r.f32(&shape)],
        ),
        fused(
            "less(x0, x1); not(t0); select(t1, x0, x2); sub(t2, x1)",
            "[0, 3]",
            vec![r.tensor(DType::I64, &shape), r.tensor(DType::I64, &[3, 1]), r.tensor(DType::I64, &[1])],
        ),
        fused(
            "cast(x0) {to = f32}; sigmoid_grad(t0, x1); tanh_grad(t1, x1); moving_average(x1, t2) {momentum \
             = 0.75}",
            "[1, 3]",
            vec![r.tensor(DType::BF16, &shape), r.f32(&shape)],
        ),
        fused(
            "max(x0, x1); abs(t0)",
            "[1]",
            vec![r.tensor(DType::I8, &shape), r.tensor(DType::I8, &[s, 3, 1])],
        ),
        fused("neg(x0); relu(t0); neg(x1)", "[1, 2]", vec![r.tensor(DType::F16, &shape), r.f32(&shape)]),
    ];
    let mut c = || r.positive(&[3]);
    let channels = [c(), c(), c(), c()];
    let (x, skip) = (r.f32(&[s, 3, 4, 5]), r.f32(&[s, 3, 4, 5]));
    let operands = [&[x][..], &channels, &[skip]].concat();
    all.push(fused("batch_norm(x0, x1, x2, x3, x4); add(t0, x5); relu(t1)", "[2]", operands));
    all.extend(products(r, s));
    all
}

/// Products with an epilogue: of one matrix, of several, with operands that broadcast, and with `t0` a result
/// or not.
pub(crate) fn products(r: &mut Random, s: u64) -> Vec<Sample> {
    let step = Tensor::i64(&[1], &[3]).unwrap();
    vec![
        fused("gemm(x0, x1, x2); relu(t0)", "[1]", vec![r.f32(&[s, 9]), r.f32(&[9, 70]), r.f32(&[70])]),
        fused(
            "gemm(x0, x1, x2) {trans_a, trans_b, alpha = 0.5, beta = 0.25}; gelu(t0) {tanh}",
            "[0, 1]",
            vec![r.f32(&[9, s]), r.f32(&[8, 9]), r.f32(&[s, 8])],
        ),
        fused(
            "matmul(x0, x1) {trans_b}; gelu_grad(t0, x2) {tanh}",
            "[1]",
            vec![r.f32(&[s, 3, 5]), r.f32(&[17, 5]), r.f32(&[s, 3, 17])],
        ),
        fused(
            "matmul(x0, x1); add(t0, x2); dropout(t1, x3) {ratio = 0.25, seed = 7, stream = 1}; mul(t2, x4)",
            "[1, 3]",
            vec![r.f32(&[2, s, 5]), r.f32(&[2, 5, 6]), r.f32(&[s, 1]), step, r.f32(&[2, 1, 6])],
        ),
        fused(
            "conv(x0, x1, x2) {strides = [1, 2], pads = [1, 0, 1, 2], dilations = [1, 1], groups = 1}; \
             relu(t0)",
            "[1]",
            vec![r.f32(&[s, 3, 5, 9]), r.f32(&[10, 3, 3, 2]), r.f32(&[10])],
        ),
        fused(
            "conv(x0, x1) {strides = [1, 1], pads = [1, 1, 1, 1], dilations = [1, 1], groups = 3}; mul(x2, \
             t0); add(t1, x3)",
            "[0, 2]",
            vec![r.f32(&[s, 3, 4, 4]), r.f32(&[3, 1, 3, 3]), r.f32(&[3, 1, 1]), r.f32(&[s, 3, 4, 4])],
        ),
        fused(
            "matmul(x0, x1); cast(t0) {to = f16}; add(t0, x0)",
            "[1, 2]",
            vec![r.f32(&[s, 1, 5, 5]), r.f32(&[3, 5, 5])],
        ),
    ]
}

/// Products with the sum of an operand.
pub(crate) fn bias_grads(r: &mut Random, s: u64) -> Vec<Sample> {
    let mut sample = |trans_a: bool, trans_b: bool, sum_b: bool, a: [u64; 2], b: [u64; 2]| {
        let op = OpKind::MatMulBiasGrad { trans_a, trans_b, alpha: F32(0.5), sum_b };
        Sample { op, operands: vec![r.f32(&a), r.f32(&b)] }
    };
    vec![
        sample(true, false, false, [8 * s, 9], [8 * s, 5]),
        sample(true, false, true, [8 * s, 9], [8 * s, 5]),
        sample(false, true, true, [7, s], [6, s]),
    ]
}

/// The next number below `n`, as an index.
fn below(r: &mut Random, n: usize) -> usize {
    r.below(n as u64) as usize
}

fn pick<T: Clone>(r: &mut Random, of: &[T]) -> T {
    of[below(r, of.len())].clone()
}

/// A chain under construction.
struct Chain {
    shape: Vec<u64>,
    steps: Vec<(Step, DType)>,
    operands: Vec<Tensor>,
}

impl Chain {
    fn operand(&mut self, t: Tensor) -> Arg {
        self.operands.push(t);
        Arg::Operand(self.operands.len() as u32 - 1)
    }

    /// A step or an operand of this element type that has the whole shape.
    fn whole(&mut self, r: &mut Random, dtype: DType) -> Arg {
        let last = self.steps.iter().rposition(|s| s.1 == dtype).map(|i| Arg::Step(i as u32));
        if let (Some(last), true) = (last, r.below(3) > 0) {
            return last;
        }
        let steps = (0..self.steps.len()).filter(|&i| self.steps[i].1 == dtype).map(|i| Arg::Step(i as u32));
        let ty = TensorType::new(dtype, &self.shape[..]);
        let whole = (0..self.operands.len()).filter(|&i| self.operands[i].ty == ty);
        let known: Vec<Arg> = steps.chain(whole.map(|i| Arg::Operand(i as u32))).collect();
        if known.is_empty() || (self.operands.len() < 10 && r.below(4) == 0) {
            let t = r.tensor(dtype, &self.shape);
            return self.operand(t);
        }
        pick(r, &known)
    }

    /// The same, or an operand that broadcasts.
    fn any(&mut self, r: &mut Random, dtype: DType) -> Arg {
        if self.operands.len() >= 10 || r.below(3) > 0 {
            return self.whole(r, dtype);
        }
        let skip = below(r, self.shape.len() + 1);
        let shape: Vec<u64> =
            self.shape[skip..].iter().map(|&d| if r.below(2) == 0 { 1 } else { d }).collect();
        let t = r.tensor(dtype, &shape);
        self.operand(t)
    }

    fn push(&mut self, op: OpKind, args: Vec<Arg>, dtype: DType) {
        self.steps.push((Step { op, args }, dtype));
    }
}

/// A chain of random steps of all element types on operands that broadcast; `exact`: without functions that
/// another processor may round otherwise.
pub(crate) fn random(r: &mut Random, exact: bool) -> Sample {
    use OpKind::*;
    let rank = below(r, 5);
    let mut shape: Vec<u64> = (0..rank).map(|_| pick(r, &[1, 2, 3, 4, 5, 8, 12, 37])).collect();
    if rank > 0 && r.below(12) == 0 {
        shape[below(r, rank)] = 0;
    }
    let mut chain = Chain { shape: shape.clone(), steps: Vec::new(), operands: Vec::new() };
    let length = 1 + below(r, 7);
    let favourite = pick(r, &DType::ALL);
    while chain.steps.len() < length {
        let last = chain.steps.last().map_or(favourite, |s| s.1);
        let dtype = if r.below(4) == 0 { pick(r, &DType::ALL) } else { last };
        let x = chain.whole(r, dtype);
        if r.below(6) == 0 {
            let to = pick(r, &DType::ALL);
            chain.push(Cast { to }, vec![x], to);
        } else if r.below(8) == 0 {
            let (cond, b) = (chain.any(r, DType::Bool), chain.any(r, dtype));
            chain.push(Select {}, if r.below(2) == 0 { vec![cond, x, b] } else { vec![cond, b, x] }, dtype);
        } else if r.below(8) == 0 && !dtype.is_narrow() {
            let op = pick(r, &[Equal {}, Less {}, LessEqual {}, Greater {}, GreaterEqual {}]);
            let b = chain.any(r, dtype);
            chain.push(op, vec![x, b], DType::Bool);
        } else if dtype == DType::Bool {
            match r.below(3) {
                0 => chain.push(Not {}, vec![x], dtype),
                n => {
                    let b = chain.any(r, dtype);
                    chain.push(if n == 1 { And {} } else { Or {} }, vec![b, x], dtype);
                }
            }
        } else if dtype.is_float() && r.below(2) == 0 {
            floats(r, &mut chain, x, dtype, exact);
        } else if r.below(3) == 0 {
            let op = pick(r, &[Neg {}, Abs {}, Sign {}, Relu {}]);
            chain.push(op, vec![x], dtype);
        } else {
            let op = pick(r, &[Add {}, Sub {}, Mul {}, Div {}, Min {}, Max {}]);
            let b = chain.any(r, dtype);
            chain.push(op, if r.below(2) == 0 { vec![x, b] } else { vec![b, x] }, dtype);
        }
    }
    finish(r, chain)
}

fn floats(r: &mut Random, chain: &mut Chain, x: Arg, dtype: DType, exact: bool) {
    use OpKind::*;
    let (ratio, seed, stream) = (F32(0.25), r.below(100) as i64 - 50, r.below(9) as i64);
    let step = |chain: &mut Chain| chain.operand(Tensor::i64(&[1], &[5]).unwrap());
    match r.below(8) {
        0 => {
            let args = vec![x, step(chain)];
            chain.push(Dropout { ratio, seed, stream }, args, dtype);
        }
        1 => {
            let mask = if r.below(2) == 0 {
                let args = vec![step(chain)];
                chain.push(RandomMask { ratio, seed, stream, shape: chain.shape.clone() }, args, DType::Bool);
                Arg::Step(chain.steps.len() as u32 - 1)
            } else {
                chain.whole(r, DType::Bool)
            };
            chain.push(MaskScale { scale: F32(1.5) }, vec![x, mask], dtype);
        }
        2 if chain.shape.len() > 1 => {
            let c = chain.shape[1];
            let own = pick(r, &[DType::F32, dtype]);
            let types = [own, own, DType::F32, DType::F32];
            let mut args = vec![x];
            for dtype in types {
                let t = r.tensor(dtype, &[c]);
                args.push(chain.operand(t));
            }
            chain.push(BatchNorm {}, args, dtype);
        }
        3 if !exact => {
            let op = pick(
                r,
                &[Exp {}, Tanh {}, Sigmoid {}, Erf {}, Gelu { tanh: false }, Gelu { tanh: true }, Sin {}],
            );
            chain.push(op, vec![x], dtype);
        }
        4 if !exact => {
            let b = chain.whole(r, dtype);
            chain.push(GeluGrad { tanh: r.below(2) == 0 }, vec![x, b], dtype);
        }
        5 => chain.push(pick(r, &[Floor {}, Ceil {}, Round {}, Reciprocal {}, Sqrt {}]), vec![x], dtype),
        _ => {
            let b = chain.whole(r, dtype);
            let average = MovingAverage { momentum: F32(0.9), scale: F32(1.25) };
            chain.push(pick(r, &[ReluGrad {}, TanhGrad {}, SigmoidGrad {}, average]), vec![x, b], dtype);
        }
    }
}

/// The op. Its results are the steps that no step reads, and some others.
fn finish(r: &mut Random, chain: Chain) -> Sample {
    let mut is_out = vec![true; chain.steps.len()];
    for arg in chain.steps.iter().flat_map(|(s, _)| &s.args) {
        if let Arg::Step(t) = *arg {
            is_out[t as usize] = r.below(5) == 0;
        }
    }
    let outs = (0..is_out.len()).filter(|&t| is_out[t]).map(|t| t as u64).collect();
    let body = Body(chain.steps.into_iter().map(|(step, _)| step).collect());
    // An operand that was offered and not taken is left out.
    let mut used: Vec<u32> = Vec::new();
    let mut body = body;
    for arg in body.0.iter_mut().flat_map(|s| &mut s.args) {
        if let Arg::Operand(x) = arg {
            let at = used.iter().position(|u| u == x).unwrap_or_else(|| {
                used.push(*x);
                used.len() - 1
            });
            *x = at as u32;
        }
    }
    let operands = used.iter().map(|&x| chain.operands[x as usize].clone()).collect();
    Sample { op: OpKind::Fused { body, outs }, operands }
}
