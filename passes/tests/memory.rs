//! `memory-rewrite` on random networks and their gradients: no bit changes, in single or in double precision.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Rng, evaluate, random_feeds, random_module, same};
use memc_ir::attr::F32;
use memc_ir::autodiff::differentiate;
use memc_ir::{
    DType, Def, Feed, Init, Module, OpKind, Output, OutputRole, Role, TensorType, Turn, ValueId, print,
    value_name, verify,
};
use memc_kernels::interp::Tensor;
use memc_passes::graph::memory::{NAME, RULES, saved_bytes};
use memc_passes::{DeviceProfile, Fired, PassCx, Pipeline};
use memc_reference::{Env, Tensor64};

const SEEDS: u64 = 250;

/// Counts of the pass, by name, and the rules that it used.
fn run(m: &mut Module, pipeline: &str) -> (BTreeMap<String, u64>, Vec<Fired>) {
    let profile = DeviceProfile::named("toy").unwrap();
    let mut cx = PassCx::new(profile);
    Pipeline::parse(pipeline).unwrap().run(m, &mut cx).unwrap();
    let of_pass = cx.stats.into_iter().filter(|(pass, ..)| *pass == NAME);
    (of_pass.map(|(_, what, n)| (what, n)).collect(), cx.fired)
}

/// A network under construction.
struct Net {
    m: Module,
    params: Vec<ValueId>,
}

impl Net {
    fn param(&mut self, shape: &[u64]) -> ValueId {
        let name = format!("w{}", self.params.len());
        let s = self.m.add_state(&name, TensorType::new(DType::F32, shape), Role::Param, Init::Zeros);
        let v = self.m.states[s].value;
        self.params.push(v);
        v
    }

    fn op(&mut self, kind: OpKind, operands: &[ValueId]) -> Vec<ValueId> {
        self.m.add_op(kind, operands, &[], "").unwrap()
    }

    fn shape(&self, v: ValueId) -> Vec<u64> {
        self.m.values[v].ty.shape.clone()
    }

    /// One layer on `x`, which has four axes; `earlier` holds the results of former layers.
    fn layer(&mut self, r: &mut Rng, x: ValueId, step: ValueId, earlier: &[ValueId]) -> ValueId {
        use OpKind::*;
        let shape = self.shape(x);
        let (strides, dilations) = (vec![1, 1], vec![1, 1]);
        let alike: Vec<ValueId> = earlier.iter().copied().filter(|&v| self.shape(v) == shape).collect();
        match r.below(15) {
            0 | 1 => {
                let w = self.param(&[4, shape[1], 3, 3]);
                self.op(Conv { strides, pads: vec![1; 4], dilations, groups: 1 }, &[x, w])[0]
            }
            2 | 3 => {
                let (scale, bias) = (self.param(&[shape[1]]), self.param(&[shape[1]]));
                let stats = self.op(BatchNormStats { epsilon: F32(1e-5) }, &[x]);
                self.op(BatchNorm {}, &[x, scale, bias, stats[0], stats[2]])[0]
            }
            4..=6 => self.op(Relu {}, &[x])[0],
            7 => {
                let kind = r.pick(&[Gelu { tanh: false }, Gelu { tanh: true }, Tanh {}, Sigmoid {}]);
                self.op(kind, &[x])[0]
            }
            8 | 9 => {
                let (kernel, pads) = (vec![3, 3], vec![1; 4]);
                let strides = vec![if shape[2] > 4 { 2 } else { 1 }; 2];
                self.op(MaxPool { kernel, strides, pads, dilations, ceil: false }, &[x])[0]
            }
            10 => self.op(Dropout { ratio: F32(0.5), seed: 7, stream: earlier.len() as i64 }, &[x, step])[0],
            11 => {
                let (ratio, stream) = (F32(0.25), earlier.len() as i64);
                let mask = self.op(RandomMask { ratio, seed: 7, stream, shape }, &[step])[0];
                self.op(MaskScale { scale: F32(1.0 / (1.0 - 0.25)) }, &[x, mask])[0]
            }
            12 => {
                let other = if alike.is_empty() { x } else { r.pick(&alike) };
                self.op(r.pick(&[Add {}, Mul {}, Sub {}]), &[x, other])[0]
            }
            13 => {
                let other = if alike.is_empty() { x } else { r.pick(&alike) };
                let wide = self.op(Concat { axis: 1 }, &[x, other])[0];
                let w = self.param(&[4, 2 * shape[1], 1, 1]);
                self.op(Conv { strides, pads: vec![0; 4], dilations, groups: 1 }, &[wide, w])[0]
            }
            _ => {
                let row = self.shape(x)[3..].to_vec();
                let (scale, bias) = (self.param(&row), self.param(&row));
                let y = self.op(LayerNorm { axis: 3, epsilon: F32(1e-5) }, &[x, scale, bias])[0];
                let turned = self.op(Transpose { perm: vec![0, 1, 3, 2] }, &[y])[0];
                self.op(Softmax { axis: 3 }, &[turned])[0]
            }
        }
    }
}

/// A random network with the gradients of its parameters, one of which is updated.
fn network(seed: u64) -> Module {
    let r = &mut Rng::new(seed ^ 0x6e65_7477);
    let mut net = Net { m: Module::new("network"), params: Vec::new() };
    let data = Feed::Data { source: "x".into(), micro: 0, range: None };
    let x = net.m.add_input("x", TensorType::new(DType::F32, [2, 4, 8, 8]), data);
    let step = net.m.add_input("step", TensorType::scalar(DType::I64), Feed::Step { turn: Turn::default() });
    let rate = net.m.add_input(
        "lr",
        TensorType::scalar(DType::F32),
        Feed::LearningRate { default: F32(0.1), turn: Turn::default() },
    );
    let w = net.param(&[4, 4, 3, 3]);
    let (strides, dilations) = (vec![1, 1], vec![1, 1]);
    let mut now = net.op(OpKind::Conv { strides, pads: vec![1; 4], dilations, groups: 1 }, &[x, w])[0];
    let mut earlier = vec![now];
    for _ in 0..4 + r.below(12) {
        now = net.layer(r, now, step, &earlier);
        earlier.push(now);
    }
    let loss = net.op(OpKind::SumSquares {}, &[now])[0];
    let Net { mut m, params } = net;
    let gradients = differentiate(&mut m, loss, &params).unwrap();
    m.outputs.push(Output { value: loss, name: "loss".into(), role: OutputRole::Loss });
    for (i, g) in gradients.iter().enumerate() {
        let Some(g) = *g else { continue };
        if i == 0 {
            let Def::State(s) = m.values[params[0]].def else { panic!("a parameter is a state") };
            let next = m.add_op(OpKind::Sgd {}, &[params[0], g, rate], &[], "").unwrap()[0];
            m.states[s].next = Some(next);
        }
        m.outputs.push(Output { value: g, name: format!("g{i}"), role: OutputRole::Gradient });
    }
    verify(&m).unwrap();
    run(&mut m, "canonicalise,cse,dce");
    m
}

/// Every output and next state in double precision, for the same content of inputs and states.
fn in_double(m: &Module, feeds: &BTreeMap<String, Tensor>) -> BTreeMap<String, Vec<u64>> {
    let start = |(v, value): (ValueId, &memc_ir::Value)| {
        let t = feeds.get(&value.name).filter(|_| !matches!(value.def, Def::Op(..) | Def::Const(_)))?;
        Some((v, Tensor64::from_bytes(value.ty.clone(), t.data.bytes()).unwrap()))
    };
    let env: Env = m.values.iter().filter_map(start).collect();
    let now = memc_reference::run(m, &env).unwrap();
    let bits = |v: ValueId| {
        now[&v].f().unwrap().iter().map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }).collect()
    };
    let outputs = m.outputs.iter().map(|o| (o.name.clone(), bits(o.value)));
    let states = m.states.values().map(|s| (value_name(m, s.value), bits(s.next.unwrap_or(s.value))));
    outputs.chain(states).collect()
}

/// Compares a module with what the pass makes of it; returns what the pass counted.
fn check(before: &Module, seed: u64, exchange: u64) -> (BTreeMap<String, u64>, Vec<Fired>) {
    let mut after = before.clone();
    let (counted, fired) = run(&mut after, &format!("{NAME}{{exchange={exchange}}},dce"));
    for round in 0..2 {
        let feeds = random_feeds(before, seed * 2 + round);
        let (want, have) = (evaluate(before, &feeds), evaluate(&after, &feeds));
        for (name, want) in &want {
            let text = || format!("seed {seed}: {name}\nbefore\n{}\nafter\n{}", print(before), print(&after));
            assert!(same(want, &have[name]), "{}", text());
        }
    }
    assert!(counted["saved bytes after"] <= counted["saved bytes before"], "seed {seed}");
    assert_eq!(counted["saved bytes before"], saved_bytes(before), "seed {seed}");
    (counted, fired)
}

#[test]
fn no_bit_of_a_random_network_changes_and_every_rule_is_used() {
    let mut used: BTreeSet<&str> = BTreeSet::new();
    let (mut kept, mut left) = (0, 0);
    for seed in 0..SEEDS {
        let m = network(seed);
        let (counted, fired) = check(&m, seed, [1, 4, 1000][seed as usize % 3]);
        (kept, left) = (kept + counted["saved bytes before"], left + counted["saved bytes after"]);
        used.extend(fired.iter().map(|f| f.rule));
    }
    let unused: Vec<&str> = RULES.iter().map(|r| r.name).filter(|r| !used.contains(r)).collect();
    assert!(unused.is_empty(), "rules that no network used: {}", unused.join(", "));
    assert!(left * 3 < kept * 2, "networks keep {left} of {kept} bytes");
}

#[test]
fn formulations_are_equal_in_double_precision_too() {
    for seed in 0..SEEDS / 5 {
        let before = network(seed);
        let mut after = before.clone();
        run(&mut after, NAME);
        let feeds = random_feeds(&before, seed);
        assert_eq!(in_double(&before, &feeds), in_double(&after, &feeds), "seed {seed}");
    }
}

/// Of all finite gradients, the largest error relative to the gradient's largest element.
fn error(m: &Module, feeds: &BTreeMap<String, Tensor>) -> f64 {
    let (have, want) = (evaluate(m, feeds), in_double(m, feeds));
    let mut worst = 0f64;
    for o in m.outputs.iter().filter(|o| o.role == OutputRole::Gradient) {
        let have = &have[&format!("output {}", o.name)];
        let want: Vec<f64> = want[&o.name].iter().map(|&b| f64::from_bits(b)).collect();
        let scale = want.iter().fold(1e-3, |s: f64, x| s.max(x.abs()));
        let pairs = have.elements::<f32>().unwrap().iter().zip(&want);
        worst = pairs.fold(worst, |w, (&h, &x)| w.max((f64::from(h) - x).abs() / scale));
    }
    worst
}

#[test]
fn gradients_are_as_close_to_double_precision_after_as_before() {
    let mut judged = 0;
    for seed in 0..SEEDS / 5 {
        let before = network(seed);
        let mut after = before.clone();
        run(&mut after, NAME);
        let mut feeds = random_feeds(&before, seed);
        // Distinct numbers of moderate size, so that no rounding decides a maximum or a sign.
        let r = &mut Rng::new(seed);
        for t in feeds.values_mut().filter(|t| t.ty.dtype == DType::F32) {
            let numbers: Vec<f32> =
                (0..t.ty.numel()).map(|_| (r.below(20001) as f32 - 10000.0) / 20000.0).collect();
            *t = Tensor::f32(&t.ty.shape, &numbers).unwrap();
        }
        let (was, is) = (error(&before, &feeds), error(&after, &feeds));
        assert_eq!(was.to_bits(), is.to_bits(), "seed {seed}");
        judged += u64::from(is < 1e-3);
    }
    assert!(judged * 4 >= SEEDS / 5 * 3, "only {judged} of {} networks are within 1e-3", SEEDS / 5);
}

#[test]
fn the_meaning_of_random_modules_with_a_loss_is_kept() {
    for seed in 0..SEEDS {
        let mut m = random_module(seed, 60);
        m.outputs[0].role = OutputRole::Loss;
        run(&mut m, "cse,dce");
        check(&m, seed, 1000);
    }
}

#[test]
fn a_module_without_a_loss_is_left_alone() {
    let mut m = network(1);
    m.outputs[0].role = OutputRole::Other;
    let before = print(&m);
    run(&mut m, NAME);
    assert_eq!(print(&m), before);
}
