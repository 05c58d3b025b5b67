//! Discrete Fourier transforms, as products with matrices of cosines and sines, and window functions.

use std::f64::consts::TAU;

use memc_ir::attr::F32;
use memc_ir::{DType, Def, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor::{self, Literal};

/// Longest transform: its matrix has four times the square of that.
const MAX_LENGTH: u64 = 4096;

/// A transform of `inputs` numbers, each `parts` floats, to `outputs` numbers.
struct Transform {
    inputs: u64,
    /// 1 for real numbers, 2 for complex ones.
    parts: u64,
    outputs: u64,
    inverse: bool,
    /// The inputs are the first half of a spectrum whose other half mirrors it, and the outputs are real.
    hermitian: bool,
    /// Period of the waves.
    length: u64,
}

impl Transform {
    fn result_parts(&self) -> u64 {
        if self.hermitian { 1 } else { 2 }
    }

    /// The matrix `[inputs * parts, outputs * result_parts]`.
    fn matrix(&self, n: &mut NodeCx<'_, '_>) -> Made {
        if self.length > MAX_LENGTH {
            return unsupported(format!(
                "a transform of {} numbers is too long; the most is {MAX_LENGTH}",
                self.length
            ));
        }
        let Transform { inputs, parts, outputs, inverse, hermitian, length } = *self;
        let name = format!("dft/{inputs}x{parts}.{outputs}.{length}.{inverse}.{hermitian}");
        if let Some(known) = n.cx.module.value_named(&name)
            && matches!(n.cx.module.values[known].def, Def::Const(_))
        {
            return Ok(known);
        }
        let shape = [inputs * parts, outputs * self.result_parts()];
        n.cx.folded.take(shape[0].saturating_mul(shape[1]).saturating_mul(4))?;
        let mut values = Vec::new();
        for j in 0..inputs {
            for part in 0..parts {
                for k in 0..outputs {
                    let angle = TAU * ((j * k) % length) as f64 / length as f64;
                    let (sin, cos) = if inverse { angle.sin_cos() } else { (-angle).sin_cos() };
                    // (re + i im) (cos + i sin)
                    let (re, im) = if part == 0 { (cos, sin) } else { (-sin, cos) };
                    let scale = if inverse { 1.0 / length as f64 } else { 1.0 };
                    if hermitian {
                        let once = j == 0 || 2 * j == length;
                        values.push((re * scale * if once { 1.0 } else { 2.0 }) as f32);
                    } else {
                        values.extend([(re * scale) as f32, (im * scale) as f32]);
                    }
                }
            }
        }
        let literal = Literal::from_floats(&shape, &values)?;
        Ok(n.cx.module.add_const(&name, literal.ty.clone(), literal.data.clone()))
    }

    /// Transforms the last but one axis of `x`, whose last axis has the parts of each number.
    fn apply(&self, n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
        let mut shape = n.ty(x).shape.clone();
        let dtype = n.ty(x).dtype;
        shape.truncate(shape.len().saturating_sub(2));
        let flat = n.reshaped(x, &[shape.as_slice(), &[self.inputs * self.parts]].concat())?;
        let matrix = self.matrix(n)?;
        let matrix = n.cast_to(matrix, dtype)?;
        let alpha = F32(1.0);
        let y = n.temp(OpKind::MatMul { trans_a: false, trans_b: false, alpha }, &[flat, matrix])?;
        n.reshaped(y, &[shape.as_slice(), &[self.outputs, self.result_parts()]].concat())
    }
}

/// `DFT` along one axis.
pub(crate) fn dft(n: &mut NodeCx<'_, '_>) -> Done {
    let mut x = n.operand(0)?;
    let ty = n.ty(x).clone();
    let rank = ty.rank();
    let parts = ty.shape.last().copied().unwrap_or(0);
    if rank < 2 || !(1..=2).contains(&parts) {
        return Err(format!("{ty} must have a last axis of one or two elements").into());
    }
    let axis = if n.version < 20 {
        n.int("axis", 1)?
    } else {
        n.const_ints(2, "axis")?.map_or(Ok(-2), |list| list.first().copied().ok_or("its axis is missing"))?
    };
    let axis = n.axis(axis, rank)?;
    if axis == rank - 1 {
        return Err("the last axis cannot be transformed; it has the parts of a complex number".into());
    }
    let (inverse, onesided) = (n.flag("inverse", false)?, n.flag("onesided", false)?);
    let hermitian = inverse && onesided;
    let stored = ty.shape[axis];
    let length = match n.const_ints(1, "dft_length")?.and_then(|list| list.first().copied()) {
        Some(length) => {
            u64::try_from(length).ok().filter(|&l| l > 0).ok_or("its dft_length must be positive")?
        }
        None if hermitian => stored.saturating_sub(1).saturating_mul(2),
        None => stored,
    };
    if length == 0 {
        return Err(format!("axis {axis} of {ty} is too short to be transformed").into());
    }
    let half = length / 2 + 1;
    let inputs = if hermitian { half } else { length };
    let perm: Vec<u64> =
        (0..rank - 1).filter(|&i| i != axis).chain([axis, rank - 1]).map(|i| i as u64).collect();
    x = n.turned(x, &perm)?;
    x = fitted(n, x, rank - 2, inputs)?;
    let outputs = if onesided && !inverse { half } else { length };
    let y = Transform { inputs, parts, outputs, inverse, hermitian, length }.apply(n, x)?;
    let mut back = vec![0; rank];
    perm.iter().enumerate().for_each(|(to, &from)| back[from as usize] = to as u64);
    let y = n.turned(y, &back)?;
    n.yields(0, y);
    Ok(())
}

/// `x` cut or padded with zeros to `extent` elements along `axis`.
fn fitted(n: &mut NodeCx<'_, '_>, x: ValueId, axis: usize, extent: u64) -> Made {
    let have = n.ty(x).shape[axis];
    match have.cmp(&extent) {
        std::cmp::Ordering::Equal => Ok(x),
        std::cmp::Ordering::Greater => n.cut(x, axis, 0, extent, 1),
        std::cmp::Ordering::Less => n.padded(x, axis, [0, extent - have], 0.0),
    }
}

/// `STFT(signal [batch, length, parts], frame_step, window, frame_length)`.
pub(crate) fn stft(n: &mut NodeCx<'_, '_>) -> Done {
    let mut x = n.operand(0)?;
    if n.ty(x).rank() == 2 {
        let shape = [n.ty(x).shape.as_slice(), &[1]].concat();
        x = n.reshaped(x, &shape)?;
    }
    let ty = n.ty(x).clone();
    let &[_, length, parts @ 1..=2] = ty.shape.as_slice() else {
        return Err(format!("{ty} must be [batch, length, 1 or 2]").into());
    };
    let single =
        |list: Option<Vec<i64>>| list.and_then(|l| u64::try_from(*l.first()?).ok()).filter(|&v| v > 0);
    let step = single(n.const_ints(1, "frame_step")?).ok_or("its frame_step must be positive")?;
    let window = n.optional(2)?;
    let stated = single(n.const_ints(3, "frame_length")?);
    let frame = stated.or_else(|| window.and_then(|w| n.ty(w).shape.first().copied()));
    let frame = frame.filter(|&f| f <= length).ok_or("its frame_length must fit the signal")?;
    let frames = (length - frame) / step + 1;
    n.small(frames.saturating_mul(frame))?;
    let places: Vec<i64> = (0..frames).flat_map(|f| (0..frame).map(move |i| (f * step + i) as i64)).collect();
    let places = n.constant_value("places", &Literal::from_ints(DType::I64, &[frames, frame], &places)?)?;
    let mut x = n.temp(OpKind::Gather { axis: 1 }, &[x, places])?;
    if let Some(window) = window {
        let column = n.reshaped(window, &[frame, 1])?;
        x = n.mul(x, column)?;
    }
    let outputs = if n.flag("onesided", true)? { frame / 2 + 1 } else { frame };
    let transform =
        Transform { inputs: frame, parts, outputs, inverse: false, hermitian: false, length: frame };
    let y = transform.apply(n, x)?;
    n.yields(0, y);
    Ok(())
}

/// `HannWindow`, `HammingWindow` and `BlackmanWindow`: `a[0] - a[1] cos(t) + a[2] cos(2 t)`.
pub(crate) fn window(n: &mut NodeCx<'_, '_>, a: [f64; 3]) -> Done {
    let size = n.const_ints(0, "size")?.and_then(|l| u64::try_from(*l.first()?).ok());
    let size = n.small(size.ok_or("its size must be one number that is not negative")?)?;
    let code = i32::try_from(n.int("output_datatype", 1)?).unwrap_or(0);
    let to = tensor::dtype(code)?;
    let period = if n.flag("periodic", true)? { size } else { size.saturating_sub(1) }.max(1);
    let at = |i: u64| {
        let t = TAU * i as f64 / period as f64;
        (a[0] - a[1] * t.cos() + a[2] * (2.0 * t).cos()) as f32
    };
    let literal = Literal::from_floats(&[size], &(0..size).map(at).collect::<Vec<f32>>())?;
    if to == DType::F32 {
        return n.fold(0, literal);
    }
    if !to.is_float() {
        return Err(Fault::Bad(format!("a window of {to} has no values between zero and one")));
    }
    let y = n.constant_value("window", &literal)?;
    let y = n.cast_to(y, to)?;
    n.yields(0, y);
    Ok(())
}
