//! Random graph modules, and running them on the CPU kernels.

mod idioms;

use std::collections::BTreeMap;

use memc_ir::attr::{F32, Scalar};
use memc_ir::{
    DType, Def, Feed, Id, Init, Module, OpKind, Output, OutputRole, Role, TensorType, ValueId, value_name,
};
use memc_kernels::interp::{Tensor, eval};

use idioms::idiom;

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}

const SHAPES: &[&[u64]] = &[
    &[],
    &[1],
    &[4],
    &[3, 4],
    &[4, 3],
    &[2, 3, 4],
    &[2, 4, 3],
    &[1, 4],
    &[1, 3, 4],
    &[6, 4],
    &[24],
    &[20, 24],
];

/// One element: mostly small numbers, with the values on which identities fail for floats.
fn element(r: &mut Rng, dtype: DType, wild: bool) -> Scalar {
    const PLAIN: [f32; 10] = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -3.0, 0.1, 4.0, 1e-40];
    const WILD: [f32; 4] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38];
    match dtype {
        DType::F32 if wild && r.one_in(8) => Scalar::Float(F32(r.pick(&WILD))),
        DType::F32 if r.one_in(2) => Scalar::Float(F32(r.pick(&PLAIN))),
        DType::F32 => Scalar::Float(F32((r.below(2001) as f32 - 1000.0) / 300.0)),
        DType::Bool => Scalar::Int(r.below(2) as i64),
        DType::I32 if r.one_in(10) => Scalar::Int(r.pick(&[i32::MIN, i32::MAX]).into()),
        DType::I64 if r.one_in(10) => Scalar::Int(r.pick(&[i64::MIN, i64::MAX])),
        _ => Scalar::Int(r.below(7) as i64 - 3),
    }
}

fn bytes(value: Scalar, dtype: DType) -> Vec<u8> {
    value.to_bytes(dtype).expect("an element of its type")
}

fn random_bytes(r: &mut Rng, ty: &TensorType, wild: bool) -> Vec<u8> {
    if r.one_in(3) {
        return bytes(element(r, ty.dtype, wild), ty.dtype).repeat(ty.numel() as usize);
    }
    (0..ty.numel()).flat_map(|_| bytes(element(r, ty.dtype, wild), ty.dtype)).collect()
}

fn shape_of(r: &mut Rng, numel: u64) -> Vec<u64> {
    let fits: Vec<Vec<u64>> =
        SHAPES.iter().filter(|s| s.iter().product::<u64>() == numel).map(|s| s.to_vec()).collect();
    if fits.is_empty() { vec![numel] } else { r.pick(&fits) }
}

/// An op that may or may not accept `x` and the other operands it is given.
fn random_op(r: &mut Rng, x: &TensorType) -> (OpKind, usize) {
    use OpKind::*;
    let rank = x.rank() as u64;
    let axis = if rank == 0 { 0 } else { r.below(x.rank()) as i64 };
    let mut perm: Vec<u64> = (0..rank).collect();
    match r.below(3) {
        0 if rank >= 2 => perm.swap(x.rank() - 2, x.rank() - 1),
        _ => (1..perm.len()).for_each(|i| perm.swap(i, r.below(i + 1))),
    }
    let (trans_a, trans_b, alpha) = (r.one_in(2), r.one_in(2), F32(r.pick(&[1.0, 1.0, 0.5])));
    let unary: [OpKind; 12] = [
        Neg {},
        Neg {},
        Abs {},
        Sign {},
        Relu {},
        Not {},
        Not {},
        Exp {},
        Sqrt {},
        Copy {},
        Tanh {},
        Reciprocal {},
    ];
    let binary: [OpKind; 18] = [
        Add {},
        Add {},
        Sub {},
        Sub {},
        Mul {},
        Mul {},
        Mul {},
        Div {},
        Pow {},
        Min {},
        Max {},
        Equal {},
        Less {},
        LessEqual {},
        Greater {},
        GreaterEqual {},
        And {},
        Or {},
    ];
    match r.below(20) {
        0..=3 => (r.pick(&unary), 1),
        4..=8 => (r.pick(&binary), 2),
        9 | 10 => (Transpose { perm }, 1),
        11 => (Reshape { shape: shape_of(r, x.numel()) }, 1),
        12 => (Broadcast { shape: r.pick(SHAPES).to_vec() }, 1),
        13 => (Cast { to: r.pick(&DType::ALL) }, 1),
        14 => (Select {}, 3),
        15 if r.one_in(3) => (Gemm { trans_a, trans_b, alpha, beta: F32(r.pick(&[0.0, 1.0])) }, 3),
        15 | 16 => (MatMul { trans_a, trans_b, alpha }, 2),
        17 => {
            let axes: Vec<u64> = (0..rank).filter(|_| r.one_in(2)).collect();
            let keepdims = r.one_in(2);
            let kind = r.below(3);
            let kind = match kind {
                0 => ReduceSum { axes, keepdims },
                1 => ReduceMean { axes, keepdims },
                _ => ReduceMax { axes, keepdims },
            };
            (kind, 1)
        }
        18 => {
            let mut slice = |d: u64| {
                let (a, b) = (r.below(d as usize + 1) as i64, r.below(d as usize + 1) as i64);
                if r.one_in(2) { (0, d as i64) } else { (a.min(b), a.max(b)) }
            };
            let (starts, ends) = x.shape.iter().map(|&d| slice(d)).unzip();
            let steps = x.shape.iter().map(|_| if r.one_in(4) { 2 } else { 1 }).collect();
            (Slice { starts, ends, steps }, 1)
        }
        _ => (Concat { axis }, 1 + r.below(2)),
    }
}

/// A module of about `ops` random ops, in which a few values are outputs and next states.
pub(crate) fn random_module(seed: u64, ops: usize) -> Module {
    let r = &mut Rng::new(seed);
    let wild = r.one_in(4);
    let mut m = Module::new("random");
    let mut pool: Vec<ValueId> = Vec::new();
    for i in 0..4 {
        let ty = TensorType::new(r.pick(&[DType::F32, DType::F32, DType::I64, DType::Bool]), r.pick(SHAPES));
        let feed = Feed::Data { source: format!("x{i}"), micro: 0, range: None };
        pool.push(m.add_input(&format!("x{i}"), ty, feed));
    }
    let mut states = Vec::new();
    for i in 0..3 {
        let ty = TensorType::new(r.pick(&[DType::F32, DType::F32, DType::I64]), r.pick(SHAPES));
        let s = m.add_state(&format!("w{i}"), ty, Role::Param, Init::Zeros);
        states.push(s);
        pool.push(m.states[s].value);
    }
    for i in 0..5 {
        let dtype = r.pick(&[DType::F32, DType::F32, DType::I32, DType::I64, DType::Bool]);
        let ty = TensorType::new(dtype, r.pick(SHAPES));
        if r.one_in(3) {
            let value = element(r, dtype, wild);
            let kind = OpKind::Fill { dtype, shape: ty.shape, value };
            pool.extend(m.add_op(kind, &[], &[&format!("f{i}")], "").unwrap());
        } else {
            let data = random_bytes(r, &ty, wild);
            pool.push(m.add_const(&format!("c{i}"), ty, data));
        }
    }
    let mut made = 0;
    while made < ops {
        // Recent values are picked more often, so that chains form.
        let pick = |r: &mut Rng, pool: &[ValueId]| {
            let recent = pool.len().saturating_sub(6);
            if r.one_in(2) { pool[recent + r.below(pool.len() - recent)] } else { pool[r.below(pool.len())] }
        };
        let x = pick(r, &pool);
        made += 1;
        if r.one_in(5) {
            let y = pick(r, &pool);
            pool.extend(idiom(r, &mut m, x, y));
            continue;
        }
        let (kind, arity) = random_op(r, &m.values[x].ty);
        // Random operands seldom fit, so try several.
        for _ in 0..8 {
            let mut operands = vec![x];
            operands.extend((1..arity).map(|_| pick(r, &pool)));
            if matches!(kind, OpKind::Select {}) {
                operands.reverse();
            }
            let small = |m: &Module, v: &ValueId| m.values[*v].ty.numel() <= 4096;
            if let Ok(results) = m.add_op(kind.clone(), &operands, &[], "") {
                if results.iter().all(|v| small(&m, v)) {
                    pool.extend(results);
                } else {
                    m.order.pop();
                }
                break;
            }
        }
    }
    for i in 0..4 {
        let value = pool[pool.len() - 1 - r.below(pool.len().min(12))];
        m.outputs.push(Output { value, name: format!("y{i}"), role: OutputRole::Other });
    }
    for s in states {
        let ty = &m.values[m.states[s].value].ty;
        let fits: Vec<ValueId> = pool.iter().copied().filter(|&v| m.values[v].ty == *ty).collect();
        m.states[s].next = Some(fits[fits.len() - 1 - r.below(fits.len().min(4))]);
    }
    counters(r, &mut m);
    m
}

/// Adds counters that go up by zero or one.
fn counters(r: &mut Rng, m: &mut Module) {
    let ty = TensorType::scalar(DType::I64);
    for i in 0..3 {
        let s = m.add_state(&format!("n{i}"), ty.clone(), Role::Buffer, Init::Zeros);
        let by = m.add_const(&format!("by{i}"), ty.clone(), (r.below(2) as i64).to_le_bytes());
        let next = m.add_op(OpKind::Add {}, &[m.states[s].value, by], &[], "").unwrap();
        m.states[s].next = Some(next[0]);
    }
}

/// Random contents for a module's inputs and states, by value name.
pub(crate) fn random_feeds(m: &Module, seed: u64) -> BTreeMap<String, Tensor> {
    let r = &mut Rng::new(seed ^ 0x5eed);
    let wild = r.one_in(4);
    let mut feeds = BTreeMap::new();
    for (_, v) in m.values.iter().filter(|(_, v)| matches!(v.def, Def::Input(_) | Def::State(_))) {
        let mut t = Tensor::zeros(v.ty.clone()).unwrap();
        t.data.bytes_mut().copy_from_slice(&random_bytes(r, &v.ty, wild));
        feeds.insert(v.name.clone(), t);
    }
    feeds
}

/// Outputs and next states of a module, by name.
pub(crate) fn evaluate(m: &Module, feeds: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let mut now: Vec<Option<Tensor>> = vec![None; m.values.len()];
    for (v, value) in m.values.iter() {
        now[v.index()] = match value.def {
            Def::Input(_) | Def::State(_) => Some(feeds[&value.name].clone()),
            Def::Const(c) => {
                let mut t = Tensor::zeros(value.ty.clone()).unwrap();
                t.data.bytes_mut().copy_from_slice(&m.consts[c].data);
                Some(t)
            }
            Def::HostShadow(_) | Def::Op(..) => None,
        };
    }
    for &id in &m.order {
        let op = &m.ops[id];
        let operands: Vec<&Tensor> = op.operands.iter().map(|v| now[v.index()].as_ref().unwrap()).collect();
        let results = eval(op.kind().unwrap(), &operands).unwrap();
        for (&v, t) in op.results.iter().zip(results) {
            now[v.index()] = Some(t);
        }
    }
    let mut out = BTreeMap::new();
    for o in &m.outputs {
        out.insert(format!("output {}", o.name), now[o.value.index()].clone().unwrap());
    }
    for s in m.states.values() {
        let next = s.next.unwrap_or(s.value);
        out.insert(format!("next {}", value_name(m, s.value)), now[next.index()].clone().unwrap());
    }
    out
}

/// Whether two tensors are equal in every bit, where a NaN equals every NaN.
pub(crate) fn same(a: &Tensor, b: &Tensor) -> bool {
    a.ty == b.ty
        && match a.ty.dtype {
            DType::F32 => {
                let pairs = a.elements::<f32>().unwrap().iter().zip(b.elements::<f32>().unwrap());
                pairs.into_iter().all(|(x, y)| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()))
            }
            _ => a.data == b.data,
        }
}
