//! A small evaluator for constants of floating point: scales, pads and sizes that exporters compute by nodes,
//! and scalars of type `double`, which the IR lacks.
//!
//! Doubles stay constants: arithmetic on them folds here, and a cast makes a tensor of them. The content of
//! f32 arithmetic is known beside its op, up to [`MAX_FLOATS`] elements and with the bits that the kernels
//! give: one operation in double, rounded to f32, is that operation in f32 for sums, differences, products,
//! quotients and roots.

use std::sync::Arc;

use memc_ir::attr::{F32, Scalar};
use memc_ir::ops::broadcast_shapes;
use memc_ir::{DType, TensorType};

use crate::context::{Bound, Done, NodeCx};
use crate::error::{Fault, unsupported};
use crate::model::Attr;
use crate::tensor::{self, Literal};

/// Most elements of a constant that folds here.
pub(crate) const MAX_FLOATS: u64 = 64;

/// A constant of type `double`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Doubles {
    pub shape: Vec<u64>,
    pub values: Arc<[f64]>,
}

impl Doubles {
    /// `values` under `shape`; `None` where there are too many.
    fn new(shape: &[u64], values: Vec<f64>) -> Option<Doubles> {
        let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))?;
        let fits = count <= MAX_FLOATS && count == values.len() as u64;
        fits.then(|| Doubles { shape: shape.to_vec(), values: values.into() })
    }

    /// A small literal of any element type.
    fn of(x: &Literal) -> Option<Doubles> {
        if x.ty.numel() > MAX_FLOATS {
            return None;
        }
        let values = match x.floats() {
            Some(floats) => floats.into_iter().map(f64::from).collect(),
            None => x.ints()?.into_iter().map(|v| v as f64).collect(),
        };
        Doubles::new(&x.ty.shape, values)
    }

    /// A stored tensor of type `double`, of its bytes or of its field.
    pub(crate) fn stored(dims: &[i64], values: Vec<f64>) -> Result<Doubles, Fault> {
        let ty = tensor::tensor_type(DType::F32, dims)?;
        if ty.numel() != values.len() as u64 {
            return Err(Fault::Bad(format!("{} elements of data do not fill its shape", values.len())));
        }
        match Doubles::new(&ty.shape, values) {
            Some(doubles) => Ok(doubles),
            None => unsupported(format!(
                "it has type double and more than {MAX_FLOATS} elements; convert the model with \
                 model.float() before the export"
            )),
        }
    }

    /// The elements as f32; a literal.
    fn literal(&self) -> Result<Literal, Fault> {
        let floats: Vec<f32> = self.values.iter().map(|&v| v as f32).collect();
        Literal::from_floats(&self.shape, &floats)
    }

    /// The elements converted to `to`; `None` where one does not fit.
    pub(crate) fn cast(&self, to: DType) -> Option<Literal> {
        let element = |&v: &f64| match to {
            DType::F32 | DType::F16 | DType::BF16 => Scalar::Float(F32(v as f32)).to_bytes(to),
            DType::Bool => Some(vec![u8::from(v != 0.0)]),
            _ => (v.abs() < 9.2e18).then_some(v.trunc() as i64).and_then(|v| Scalar::Int(v).to_bytes(to)),
        };
        let bytes: Option<Vec<Vec<u8>>> = self.values.iter().map(element).collect();
        Literal::new(TensorType::new(to, self.shape.clone()), bytes?.concat()).ok()
    }

    fn expand(&self, shape: &[u64]) -> Option<Vec<f64>> {
        let lead = shape.len().checked_sub(self.shape.len())?;
        let count: u64 = shape.iter().product();
        if count > MAX_FLOATS {
            return None;
        }
        let at = |flat: u64| {
            let (mut rest, mut index, mut stride) = (flat, 0, 1);
            for (i, &extent) in shape.iter().enumerate().rev() {
                let position = rest % extent;
                rest /= extent;
                if let Some(&own) = i.checked_sub(lead).and_then(|i| self.shape.get(i)) {
                    index += if own == 1 { 0 } else { position * stride };
                    stride *= own;
                }
            }
            self.values.get(index as usize).copied()
        };
        (0..count).map(at).collect()
    }
}

/// Result of an operator.
enum Value {
    Numbers(Doubles),
    Flags(Doubles),
}

fn unary(op: &str, x: &Doubles) -> Option<Value> {
    let f: fn(f64) -> f64 = match op {
        "Neg" => |v| -v,
        "Abs" => f64::abs,
        "Relu" => |v| if v < 0.0 { 0.0 } else { v },
        "Sqrt" => f64::sqrt,
        "Reciprocal" => |v| 1.0 / v,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        _ => return None,
    };
    Doubles::new(&x.shape, x.values.iter().map(|&v| f(v)).collect()).map(Value::Numbers)
}

fn binary(op: &str, a: &Doubles, b: &Doubles) -> Option<Value> {
    let shape = broadcast_shapes(&a.shape, &b.shape).ok()?;
    let pairs = || Some(a.expand(&shape)?.into_iter().zip(b.expand(&shape)?));
    let f: fn(f64, f64) -> f64 = match op {
        "Add" => |x, y| x + y,
        "Sub" => |x, y| x - y,
        "Mul" => |x, y| x * y,
        "Div" => |x, y| x / y,
        "Min" => |x, y| if y < x || y.is_nan() { y } else { x },
        "Max" => |x, y| if y > x || y.is_nan() { y } else { x },
        _ => {
            let f: fn(f64, f64) -> bool = match op {
                "Equal" => |x, y| x == y,
                "Less" => |x, y| x < y,
                "LessOrEqual" => |x, y| x <= y,
                "Greater" => |x, y| x > y,
                "GreaterOrEqual" => |x, y| x >= y,
                _ => return None,
            };
            let flags = pairs()?.map(|(x, y)| f64::from(u8::from(f(x, y)))).collect();
            return Doubles::new(&shape, flags).map(Value::Flags);
        }
    };
    Doubles::new(&shape, pairs()?.map(|(x, y)| f(x, y)).collect()).map(Value::Numbers)
}

/// Operators on doubles alone, whose results need not be those of a kernel.
fn more(op: &str, args: &[Doubles]) -> Option<Value> {
    let numbers = match (op, args) {
        ("Pow", [a, b]) => {
            let shape = broadcast_shapes(&a.shape, &b.shape).ok()?;
            let pairs = a.expand(&shape)?.into_iter().zip(b.expand(&shape)?);
            Doubles::new(&shape, pairs.map(|(x, y)| x.powf(y)).collect())
        }
        ("Exp", [x]) => Doubles::new(&x.shape, x.values.iter().map(|v| v.exp()).collect()),
        ("Log", [x]) => Doubles::new(&x.shape, x.values.iter().map(|v| v.ln()).collect()),
        ("Identity", [x]) => Some(x.clone()),
        ("Unsqueeze" | "Squeeze" | "Reshape" | "Flatten", [x, ..]) if x.values.len() == 1 => {
            // Scalars only: their rank is all that changes, and broadcasting does not ask for it.
            Some(x.clone())
        }
        _ => None,
    };
    numbers.map(Value::Numbers)
}

/// Folds an f32 operator of small constants; `None` where it is none of these.
pub(crate) fn fold(op: &str, args: &[&Literal]) -> Option<Literal> {
    let exact = args.iter().all(|x| x.ty.dtype == DType::F32);
    let doubles: Vec<Doubles> = args.iter().map(|x| Doubles::of(x)).collect::<Option<_>>()?;
    let value = match (&doubles[..], exact) {
        ([x], true) => unary(op, x)?,
        ([a, b], true) => binary(op, a, b)?,
        _ => return None,
    };
    match value {
        Value::Numbers(x) => x.literal().ok(),
        Value::Flags(x) => x.cast(DType::Bool),
    }
}

/// A power of small f32 constants, as shapes ask for it: `num_patches ** 0.5`.
pub(crate) fn power(base: &Literal, exponent: &Literal) -> Option<Literal> {
    let args = [base, exponent].map(Doubles::of);
    let [Some(a), Some(b)] = args else { return None };
    match more("Pow", &[a, b])? {
        Value::Numbers(x) if base.ty.dtype == DType::F32 => x.literal().ok(),
        _ => None,
    }
}

/// Joins small vectors of f32.
pub(crate) fn concat(parts: &[Literal]) -> Option<Literal> {
    let vector = |x: &Literal| x.ty.rank() == 1 && x.ty.dtype == DType::F32;
    if !parts.iter().all(vector) {
        return None;
    }
    let values: Vec<f32> = parts.iter().map(Literal::floats).collect::<Option<Vec<_>>>()?.concat();
    (values.len() as u64 <= MAX_FLOATS).then(|| Literal::from_floats(&[values.len() as u64], &values).ok())?
}

/// Imports a node that reads a constant of type `double`, or makes one.
pub(crate) fn import(n: &mut NodeCx<'_, '_>) -> Done {
    let op = n.node.op.as_str();
    let mut args = Vec::new();
    for name in n.node.inputs.iter().filter(|name| !name.is_empty()) {
        let bound = n.cx.bound(name)?;
        let small = bound.double.clone().or_else(|| bound.literal.as_ref().and_then(Doubles::of));
        args.extend(small);
    }
    let complete = args.len() == n.node.inputs.iter().filter(|name| !name.is_empty()).count();
    let to = match op {
        "Cast" => Some(i32::try_from(n.int("to", 0)?).unwrap_or(0)),
        _ => None,
    };
    let name = n.input(0).unwrap_or_default();
    match (&args[..], to) {
        ([x], Some(tensor::DOUBLE)) => {
            n.bind(0, x.clone());
            return Ok(());
        }
        ([x], Some(code)) => {
            let to = tensor::dtype(code)?;
            let literal = x.cast(to).ok_or_else(|| format!("`{name}` does not fit {to}"))?;
            return n.fold(0, literal);
        }
        ([], Some(_)) => {
            return unsupported(
                "it makes a tensor of type `double`, and only constants may have that type; compute in float",
            );
        }
        _ => {}
    }
    if op == "CastLike" {
        let to = n.operand_type(1)?.dtype;
        let double = n.cx.bound(name)?.double.clone();
        let literal = double.and_then(|x| x.cast(to)).ok_or_else(|| format!("`{name}` does not fit {to}"))?;
        return n.fold(0, literal);
    }
    let value = match &args[..] {
        _ if !complete => None,
        [x] => unary(op, x).or_else(|| more(op, &args)),
        [a, b] => binary(op, a, b).or_else(|| more(op, &args)),
        _ => more(op, &args),
    };
    match value {
        Some(Value::Numbers(x)) => n.bind(0, x),
        Some(Value::Flags(x)) => {
            let literal = x.cast(DType::Bool).ok_or("a comparison has no result")?;
            n.fold(0, literal)?;
        }
        None => {
            let double = n
                .node
                .inputs
                .iter()
                .find(|name| n.cx.scope.get(name.as_str()).is_some_and(|b: &Bound| b.double.is_some()));
            return unsupported(format!(
                "it reads `{}`, a constant of type `double`; only arithmetic on such constants and casts are \
                 supported, so write the number as float in the model",
                double.map_or("", String::as_str)
            ));
        }
    }
    Ok(())
}

/// The constant of a `Constant` node of type `double`.
pub(crate) fn constant(attr: &Attr) -> Option<Result<Doubles, Fault>> {
    let Attr::Tensor(t) = attr else { return None };
    (t.dtype == tensor::DOUBLE).then(|| tensor::doubles(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubles(shape: &[u64], values: &[f64]) -> Doubles {
        Doubles::new(shape, values.to_vec()).expect("small")
    }

    fn numbers(value: Option<Value>) -> Option<Vec<f64>> {
        match value? {
            Value::Numbers(x) | Value::Flags(x) => Some(x.values.to_vec()),
        }
    }

    /// Broadcasting pairs elements as numpy does; comparisons give flags.
    #[test]
    fn operands_broadcast() {
        let (column, row) = (doubles(&[2, 1], &[10.0, 20.0]), doubles(&[3], &[1.0, 2.0, 3.0]));
        assert_eq!(numbers(binary("Add", &column, &row)), Some(vec![11.0, 12.0, 13.0, 21.0, 22.0, 23.0]));
        assert_eq!(numbers(binary("Less", &row, &doubles(&[], &[2.0]))), Some(vec![1.0, 0.0, 0.0]));
        assert!(
            binary("Mul", &doubles(&[64], &[1.0; 64]), &doubles(&[2, 1], &[1.0; 2])).is_none(),
            "too many"
        );
    }

    /// f32 arithmetic by way of doubles has the bits of f32 arithmetic.
    #[test]
    fn single_precision_is_exact() {
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f32::from_bits((seed >> 32) as u32 & 0x3fff_ffff | 0x2000_0000)
        };
        for _ in 0..2000 {
            let (x, y) = (next(), next());
            let literal = |v: f32| Literal::from_floats(&[], &[v]).expect("scalar");
            let (a, b) = (literal(x), literal(y));
            let folded = |op: &str, args: &[&Literal]| {
                let bits = fold(op, args).and_then(|l| l.floats()).map(|v| v[0].to_bits());
                bits.expect("it folds")
            };
            assert_eq!(folded("Add", &[&a, &b]), (x + y).to_bits());
            assert_eq!(folded("Mul", &[&a, &b]), (x * y).to_bits());
            assert_eq!(folded("Div", &[&a, &b]), (x / y).to_bits());
            assert_eq!(folded("Sqrt", &[&a]), x.sqrt().to_bits());
        }
    }

    /// A square root of a number of patches is the whole number that a cast takes for an extent.
    #[test]
    fn powers_of_constants() {
        let scalar = |v: f32| Literal::from_floats(&[], &[v]).expect("scalar");
        let root = power(&scalar(16.0), &scalar(0.5)).and_then(|x| x.floats());
        assert_eq!(root, Some(vec![4.0]));
    }

    /// Casts truncate, round once, and refuse what does not fit.
    #[test]
    fn casts_of_doubles() {
        let x = doubles(&[2], &[-1.75, 3.0]);
        assert_eq!(x.cast(DType::I64).and_then(|l| l.ints()), Some(vec![-1, 3]));
        assert_eq!(doubles(&[], &[0.1]).cast(DType::F32).and_then(|l| l.floats()), Some(vec![0.1f32]));
        assert_eq!(x.cast(DType::Bool).and_then(|l| l.ints()), Some(vec![1, 1]));
        assert_eq!(doubles(&[], &[1e300]).cast(DType::I64), None);
        assert_eq!(doubles(&[], &[300.0]).cast(DType::U8), None);
    }
}
