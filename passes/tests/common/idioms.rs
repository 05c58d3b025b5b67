//! Ops in a row that exporters write in a row.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, Module, OpKind, ValueId};

use super::Rng;

/// Adds a few ops in a row that exporters write in a row, when the operands fit.
pub(super) fn idiom(r: &mut Rng, m: &mut Module, x: ValueId, y: ValueId) -> Option<ValueId> {
    use OpKind::*;
    let number = |m: &mut Module, v: f32| {
        let kind = Fill { dtype: DType::F32, shape: Vec::new(), value: Scalar::Float(F32(v)) };
        m.add_op(kind, &[], &[], "").unwrap()[0]
    };
    let op = |m: &mut Module, kind, operands: &[ValueId]| {
        m.add_op(kind, operands, &[], "").ok().map(|results| results[0])
    };
    let ty = m.values[x].ty.clone();
    match r.below(12) {
        0 => {
            let wide = op(m, Cast { to: r.pick(&[DType::I64, DType::F32]) }, &[x])?;
            op(m, Cast { to: r.pick(&DType::ALL) }, &[wide])
        }
        1 => {
            let c = number(m, r.pick(&[2.0, 0.25, -8.0, 3.0, 1e-40, 1.2e38]));
            op(m, Div {}, &[x, c])
        }
        2 => {
            let (a, b) = (op(m, Neg {}, &[x])?, op(m, Neg {}, &[y])?);
            op(m, r.pick(&[Mul {}, Div {}]), &[a, b])
        }
        3 => {
            let c = number(m, r.pick(&[1.0, 2.0]));
            op(m, Pow {}, &[x, c])
        }
        4 => {
            let (zero, other) = (number(m, 0.0), number(m, r.pick(&[0.0, -0.0, 1.0])));
            let mask = op(m, Greater {}, &[y, other])?;
            op(m, Select {}, &[mask, x, zero])
        }
        5 => {
            let perm = (0..ty.rank() as u64).collect::<Vec<_>>();
            let (lead, [a, b]) = perm.split_last_chunk::<2>()?;
            let t = op(m, Transpose { perm: [lead, &[*b, *a]].concat() }, &[x])?;
            let scale = number(m, 0.1);
            let t = op(m, Mul {}, &[t, scale])?;
            let [.., p, q] = m.values[t].ty.shape[..] else { return None };
            let t = op(m, Reshape { shape: vec![ty.numel() / (p * q).max(1), p, q] }, &[t])?;
            op(m, MatMul { trans_a: r.one_in(2), trans_b: r.one_in(2), alpha: F32(1.0) }, &[t, x])
        }
        7 if r.one_in(2) => {
            // A linear layer's gradients, of the weight from rows, of the bias from rows or from all leading
            // axes.
            let (&n, lead) = ty.shape.split_last()?;
            let (rows, axes) = (lead.iter().product(), (0..lead.len() as u64).collect());
            let matrix = op(m, Reshape { shape: vec![rows, n] }, &[x])?;
            let whole = if r.one_in(2) { x } else { matrix };
            let axes = if whole == x { axes } else { vec![0] };
            let db = op(m, ReduceSum { axes, keepdims: false }, &[whole])?;
            let input = op(m, Exp {}, &[matrix])?;
            let operands = if r.one_in(2) { [matrix, input] } else { [input, matrix] };
            let dw = op(m, MatMul { trans_a: true, trans_b: false, alpha: F32(1.0) }, &operands)?;
            op(m, Add {}, &[dw, db])
        }
        6 | 7 => {
            let w = r.below(m.states.len());
            let w = m.states.values().nth(w)?.value;
            let rate = number(m, 0.1);
            let step = op(m, Mul {}, &[x, rate])?;
            op(m, r.pick(&[Sub {}, Add {}]), &[w, step])
        }
        8 => {
            let axis = r.below(ty.rank().max(1)) as i64;
            let joined = op(m, Concat { axis }, &[x, y])?;
            let mut shape = m.values[joined].ty.shape.clone();
            let first = ty.shape[axis as usize];
            let mut starts = vec![0; shape.len()];
            if r.one_in(2) {
                starts[axis as usize] = first as i64;
            } else {
                shape[axis as usize] = first;
            }
            let ends = shape.iter().map(|&d| d as i64).collect();
            op(m, Slice { starts, ends, steps: vec![1; shape.len()] }, &[joined])
        }
        9 => {
            let one = number(m, 1.0);
            let square = op(m, Mul {}, &[y, y])?;
            let slope = op(m, Sub {}, &[one, square])?;
            op(m, Mul {}, &[x, slope])
        }
        10 => {
            let (sum, axis) = (op(m, Add {}, &[x, y])?, ty.rank() as i64 - 1);
            let shape = ty.shape.last().map(|&n| vec![n])?;
            let scale = op(m, Fill { dtype: DType::F32, shape, value: Scalar::Float(F32(0.5)) }, &[])?;
            let norm = LayerNorm { axis, epsilon: F32(1e-5) };
            let [y, mean, inv] = m.add_op(norm, &[sum, scale], &[], "").ok()?[..] else { return None };
            let dx = op(m, LayerNormGrad { axis }, &[x, sum, scale, mean, inv])?;
            op(m, Add {}, &[dx, y])
        }
        _ => {
            let perm: Vec<u64> = (0..ty.rank() as u64).rev().collect();
            let t = op(m, Transpose { perm: perm.clone() }, &[x])?;
            let flat = op(m, Reshape { shape: vec![ty.numel()] }, &[t])?;
            let n = op(m, r.pick(&[Neg {}, Relu {}]), &[flat])?;
            let shape = perm.iter().map(|&p| ty.shape[p as usize]).collect();
            let n = op(m, Reshape { shape }, &[n])?;
            op(m, Transpose { perm }, &[n])
        }
    }
}
