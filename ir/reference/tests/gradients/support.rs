//! Building a module around one op, and comparing its gradients with central differences.

use memc_ir::autodiff::differentiate;
use memc_ir::{DType, Feed, Init, Module, OpKind, Role, TensorType, ValueId, verify};
use memc_reference::{Data, Env, Tensor64, run};

/// Largest difference between a gradient and its central difference, relative to the largest of the tensor
/// or 1.
const TOLERANCE: f64 = 1e-6;

/// Expected outcome of differentiating a case.
pub(crate) enum Expect {
    /// Gradients of these operands.
    Gradients(Vec<usize>),
    /// A refusal whose reason holds this text.
    Refused(&'static str),
    /// Nothing to differentiate: no operand or no result is floating point, or the op stops gradients.
    Nothing,
}

/// One op with its operands.
pub(crate) struct Case {
    pub(crate) op: OpKind,
    pub(crate) operands: Vec<Tensor64>,
    pub(crate) expect: Expect,
}

/// Numbers that look random and are the same every time (xorshift64*, Vigna 2016).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n
    }

    /// Uniform in `low..high`.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.below(1 << 40) as f64 / (1u64 << 40) as f64
    }

    /// Elements in `low..high`.
    pub(crate) fn floats(&mut self, shape: &[u64], low: f64, high: f64) -> Tensor64 {
        let n = shape.iter().product::<u64>();
        Tensor64::floats(shape, (0..n).map(|_| self.between(low, high)).collect())
    }

    /// Elements in -1.5..1.5, at least 0.1 away from zero.
    pub(crate) fn nonzero(&mut self, shape: &[u64]) -> Tensor64 {
        let mut x = self.floats(shape, 0.1, 1.5);
        if let Data::Float(v) = &mut x.data {
            v.iter_mut().for_each(|v| *v *= if self.below(2) == 0 { 1.0 } else { -1.0 });
        }
        x
    }

    /// Elements of which no two are closer than 0.05, in random order; `shift` moves all of them.
    pub(crate) fn distinct(&mut self, shape: &[u64], shift: f64) -> Tensor64 {
        let n = shape.iter().product::<u64>();
        let mut v: Vec<f64> = (0..n).map(|i| (i as f64 - n as f64 / 2.0) * 0.05 + shift).collect();
        for i in (1..v.len()).rev() {
            v.swap(i, self.below(i as u64 + 1) as usize);
        }
        Tensor64::floats(shape, v)
    }

    /// Integers in `low..high`.
    pub(crate) fn ints(&mut self, shape: &[u64], low: i64, high: i64) -> Tensor64 {
        let n = shape.iter().product::<u64>();
        Tensor64::ints(shape, (0..n).map(|_| low + self.below((high - low) as u64) as i64).collect())
    }

    /// Random booleans.
    pub(crate) fn bools(&mut self, shape: &[u64]) -> Tensor64 {
        let ints = self.ints(shape, 0, 2);
        Tensor64 { ty: TensorType::new(DType::Bool, shape), data: ints.data }
    }
}

impl Case {
    /// A case whose floating-point operands must all get a gradient.
    pub(crate) fn new(op: OpKind, operands: Vec<Tensor64>) -> Self {
        let types: Vec<&TensorType> = operands.iter().map(|t| &t.ty).collect();
        let results = op.infer(&types).unwrap_or_else(|e| panic!("{}: {e}", op.mnemonic()));
        let floats: Vec<usize> = (0..operands.len()).filter(|&i| types[i].dtype.is_float()).collect();
        let nothing = floats.is_empty() || !results.iter().any(|t| t.dtype.is_float());
        let expect = if nothing { Expect::Nothing } else { Expect::Gradients(floats) };
        Case { op, operands, expect }
    }

    /// A case in which only these operands are differentiated.
    pub(crate) fn only(op: OpKind, operands: Vec<Tensor64>, wrt: &[usize]) -> Self {
        Case { expect: Expect::Gradients(wrt.to_vec()), ..Case::new(op, operands) }
    }

    /// A case whose gradient is refused for a reason that holds `why`.
    pub(crate) fn refused(op: OpKind, operands: Vec<Tensor64>, why: &'static str) -> Self {
        Case { expect: Expect::Refused(why), ..Case::new(op, operands) }
    }

    /// Fails with the op, its attributes and operand types, and the fault.
    pub(crate) fn check(&self) -> Result<(), String> {
        let types: Vec<String> = self.operands.iter().map(|t| t.ty.to_string()).collect();
        let call = format!("{} {} {}", self.op.mnemonic(), self.op.attrs_text(), types.join(", "));
        let wrt: Vec<usize> = match &self.expect {
            Expect::Nothing => return Ok(()),
            Expect::Gradients(wrt) => wrt.clone(),
            Expect::Refused(_) => {
                (0..types.len()).filter(|&i| self.operands[i].ty.dtype.is_float()).collect()
            }
        };
        let (mut m, env, loss, values) = self.module();
        let wrt: Vec<ValueId> = wrt.iter().map(|&i| values[i]).collect();
        match (&self.expect, compare(&mut m, &env, loss, &wrt)) {
            (Expect::Refused(why), Err(e)) if e.contains(why) => Ok(()),
            (Expect::Refused(why), got) => Err(format!("{call}: not refused because {why}: {got:?}")),
            (_, got) => got.map_err(|e| format!("{call}: {e}")),
        }
    }

    /// `sum(c * results)` for random `c`, its inputs, the loss, and the values of the op's operands.
    fn module(&self) -> (Module, Env, ValueId, Vec<ValueId>) {
        let (mut m, mut env) = (Module::new("row"), Env::new());
        let mut state = |m: &mut Module, name: &str, t: &Tensor64| {
            let id = m.add_state(name, t.ty.clone(), Role::Param, Init::Zeros);
            env.insert(m.states[id].value, t.clone());
            m.states[id].value
        };
        let mut values = Vec::new();
        for (i, t) in self.operands.iter().enumerate() {
            values.push(state(&mut m, &format!("x{i}"), t));
        }
        let results = m.add_op(self.op.clone(), &values, &[], "row").unwrap();
        let mut loss: Option<ValueId> = None;
        for (i, &y) in results.iter().enumerate() {
            let ty = m.values[y].ty.clone();
            if !ty.dtype.is_float() {
                continue;
            }
            let c = Random::new(i as u64 + 77).floats(&ty.shape, 0.3, 1.7);
            let c = state(&mut m, &format!("c{i}"), &c);
            let weighed = m.add_op(OpKind::Mul {}, &[y, c], &[], "").unwrap()[0];
            let axes = (0..ty.rank() as u64).collect();
            let sum = m.add_op(OpKind::ReduceSum { axes, keepdims: false }, &[weighed], &[], "").unwrap()[0];
            loss = Some(match loss {
                Some(other) => m.add_op(OpKind::Add {}, &[other, sum], &[], "").unwrap()[0],
                None => sum,
            });
        }
        (m, env, loss.unwrap(), values)
    }
}

fn loss_at(m: &Module, env: &Env, loss: ValueId) -> Result<f64, String> {
    Ok(run(m, env)?[&loss].f()?[0])
}

/// Differentiates `loss` by each of `wrt`, and compares every element with a central difference.
pub(crate) fn compare(m: &mut Module, env: &Env, loss: ValueId, wrt: &[ValueId]) -> Result<(), String> {
    let forward = m.clone();
    let grads = differentiate(m, loss, wrt).map_err(|e| e.to_string())?;
    verify(m).map_err(|d| d.to_string())?;
    let all = run(m, env)?;
    for (&x, grad) in wrt.iter().zip(grads) {
        let name = &m.values[x].name;
        let grad = all[&grad.ok_or(format!("{name} has no gradient"))?].f()?.to_vec();
        let centre = env[&x].f()?.to_vec();
        let mut differences = Vec::new();
        for i in 0..centre.len() {
            let step = 1e-5 * centre[i].abs().max(1.0);
            let mut moved = env.clone();
            let mut loss_with = |value: f64| {
                let mut v = centre.clone();
                v[i] = value;
                let ty = env[&x].ty.clone();
                moved.insert(x, Tensor64 { ty, data: Data::Float(v) });
                loss_at(&forward, &moved, loss)
            };
            differences.push((loss_with(centre[i] + step)? - loss_with(centre[i] - step)?) / (2.0 * step));
        }
        let size = differences.iter().fold(1.0f64, |s, d| s.max(d.abs()));
        for (i, (g, d)) in grad.iter().zip(&differences).enumerate() {
            let near = (g - d).abs() <= TOLERANCE * size;
            if !near {
                return Err(format!("{name}[{i}] has gradient {g}, the difference quotient is {d}"));
            }
        }
    }
    Ok(())
}

/// Contents for all inputs and states of a module: labels and indices within their range, the rest random.
pub(crate) fn contents(m: &Module, seed: u64) -> Env {
    let mut r = Random::new(seed);
    let mut env = Env::new();
    for input in m.inputs.values() {
        let ty = &m.values[input.value].ty;
        let tensor = match &input.feed {
            Feed::Data { range: Some((low, high)), .. } => r.ints(&ty.shape, *low, *high),
            _ => r.nonzero(&ty.shape),
        };
        env.insert(input.value, tensor);
    }
    for state in m.states.values() {
        env.insert(state.value, r.nonzero(&m.values[state.value].ty.shape));
    }
    env
}
