//! Activation functions without a row of their own, as compositions that are exact and differentiable.

use memc_ir::{OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::Fault;

/// Imports a function of input 0.
pub(crate) fn of(n: &mut NodeCx<'_, '_>, f: fn(&mut NodeCx<'_, '_>, ValueId) -> Made) -> Done {
    let x = n.operand(0)?;
    let y = f(n, x)?;
    n.yields(0, y);
    Ok(())
}

/// `x < 0 ? low : x`.
pub(crate) fn below_zero(n: &mut NodeCx<'_, '_>, x: ValueId, low: ValueId) -> Made {
    let zero = n.number(x, "zero", 0.0)?;
    let negative = n.temp(OpKind::Less {}, &[x, zero])?;
    n.pick(negative, low, x)
}

/// `factor * (exp(min(x, 0) / divisor) - 1)`; the minimum keeps the half that is not taken finite.
fn decay(n: &mut NodeCx<'_, '_>, x: ValueId, factor: f32, divisor: f32) -> Made {
    let zero = n.number(x, "zero", 0.0)?;
    let mut low = n.temp(OpKind::Min {}, &[x, zero])?;
    if divisor != 1.0 {
        let divisor = n.number(x, "alpha", divisor)?;
        low = n.div(low, divisor)?;
    }
    let e = n.temp(OpKind::Exp {}, &[low])?;
    let e = n.shifted(e, "minus_one", -1.0)?;
    n.scaled(e, "alpha", factor)
}

/// `Elu`: `x < 0 ? alpha * (exp(x) - 1) : x`.
pub(crate) fn elu(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let alpha = n.float("alpha", 1.0)?;
    let low = decay(n, x, alpha, 1.0)?;
    below_zero(n, x, low)
}

/// `Celu`: `x < 0 ? alpha * (exp(x / alpha) - 1) : x`.
pub(crate) fn celu(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let alpha = n.float("alpha", 1.0)?;
    let low = decay(n, x, alpha, alpha)?;
    below_zero(n, x, low)
}

/// `Selu`: `gamma * elu(x)`. The defaults are the standard's, with more digits than floats have.
pub(crate) fn selu(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let alpha = n.float("alpha", 1.673_263_2)?;
    let gamma = n.float("gamma", 1.050_701)?;
    let low = decay(n, x, alpha, 1.0)?;
    let y = below_zero(n, x, low)?;
    n.scaled(y, "gamma", gamma)
}

/// `LeakyRelu`: `x < 0 ? alpha * x : x`.
pub(crate) fn leaky_relu(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let alpha = n.float("alpha", 0.01)?;
    let low = n.scaled(x, "alpha", alpha)?;
    below_zero(n, x, low)
}

/// `PRelu`: `x < 0 ? slope * x : x`, where the slope broadcasts to `x`.
pub(crate) fn prelu(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let slope = n.operand(1)?;
    let low = n.mul(slope, x)?;
    if n.ty(low) != n.ty(x) {
        return Err(format!("slope {} does not broadcast to {}", n.ty(slope), n.ty(x)).into());
    }
    below_zero(n, x, low)
}

/// `min(max(alpha * x + beta, 0), 1)`.
fn ramp(n: &mut NodeCx<'_, '_>, x: ValueId, alpha: f32, beta: f32) -> Made {
    let y = n.scaled(x, "alpha", alpha)?;
    let y = n.shifted(y, "beta", beta)?;
    let (zero, one) = (n.number(x, "zero", 0.0)?, n.number(x, "one", 1.0)?);
    let y = n.temp(OpKind::Max {}, &[y, zero])?;
    n.temp(OpKind::Min {}, &[y, one])
}

/// `HardSigmoid`.
pub(crate) fn hard_sigmoid(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (alpha, beta) = (n.float("alpha", 0.2)?, n.float("beta", 0.5)?);
    ramp(n, x, alpha, beta)
}

/// `HardSwish`: `x` times the hard sigmoid with slope 1/6.
pub(crate) fn hard_swish(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let gate = ramp(n, x, 1.0 / 6.0, 0.5)?;
    n.mul(x, gate)
}

/// From here on `log(1 + exp(x))` is `x` in every element type.
const LINEAR: f32 = 20.0;

/// `Softplus`: `log(1 + exp(x))`, which is `x` where it is large. The minimum keeps the half that is not
/// taken finite.
pub(crate) fn softplus(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let bound = n.number(x, "bound", LINEAR)?;
    let large = n.temp(OpKind::Greater {}, &[x, bound])?;
    let low = n.temp(OpKind::Min {}, &[x, bound])?;
    let e = n.temp(OpKind::Exp {}, &[low])?;
    let e = n.shifted(e, "one", 1.0)?;
    let curved = n.temp(OpKind::Log {}, &[e])?;
    n.pick(large, x, curved)
}

/// `Softsign`: `x / (1 + |x|)`.
pub(crate) fn softsign(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let size = n.temp(OpKind::Abs {}, &[x])?;
    let size = n.shifted(size, "one", 1.0)?;
    n.div(x, size)
}

/// `Mish`: `x * tanh(softplus(x))`.
pub(crate) fn mish(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let gate = softplus(n, x)?;
    let gate = n.temp(OpKind::Tanh {}, &[gate])?;
    n.mul(x, gate)
}

/// `Swish`: `x * sigmoid(alpha * x)`.
pub(crate) fn swish(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let alpha = n.float("alpha", 1.0)?;
    let gate = n.scaled(x, "alpha", alpha)?;
    let gate = n.temp(OpKind::Sigmoid {}, &[gate])?;
    n.mul(x, gate)
}

/// `SwiGLU`: `a * sigmoid(alpha * a) * b`.
pub(crate) fn swiglu(n: &mut NodeCx<'_, '_>) -> Done {
    let (a, b) = (n.operand(0)?, n.operand(1)?);
    let gate = swish(n, a)?;
    let y = n.mul(gate, b)?;
    n.yields(0, y);
    Ok(())
}

/// `ThresholdedRelu`: `x > alpha ? x : 0`.
pub(crate) fn thresholded_relu(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let alpha = n.float("alpha", 1.0)?;
    let (alpha, zero) = (n.number(x, "alpha", alpha)?, n.number(x, "zero", 0.0)?);
    let above = n.temp(OpKind::Greater {}, &[x, alpha])?;
    n.pick(above, x, zero)
}

/// `Shrink`: zero within `lambd` of zero, else `bias` closer to it.
pub(crate) fn shrink(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (lambda, bias) = (n.float("lambd", 0.5)?, n.float("bias", 0.0)?);
    let (low, high) = (n.number(x, "low", -lambda)?, n.number(x, "high", lambda)?);
    let zero = n.number(x, "zero", 0.0)?;
    let (below, above) = (n.temp(OpKind::Less {}, &[x, low])?, n.temp(OpKind::Greater {}, &[x, high])?);
    let (raised, lowered) = (n.shifted(x, "bias", bias)?, n.shifted(x, "bias", -bias)?);
    let rest = n.pick(above, lowered, zero)?;
    n.pick(below, raised, rest)
}

/// `Sinh` as `tanh(x) * cosh(x)`, which keeps the digits of small numbers.
pub(crate) fn sinh(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let c = cosh(n, x)?;
    let t = n.temp(OpKind::Tanh {}, &[x])?;
    n.mul(t, c)
}

/// `Cosh`: `(exp(x) + exp(-x)) / 2`.
pub(crate) fn cosh(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let back = n.temp(OpKind::Neg {}, &[x])?;
    let (e, f) = (n.temp(OpKind::Exp {}, &[x])?, n.temp(OpKind::Exp {}, &[back])?);
    let sum = n.add(e, f)?;
    n.scaled(sum, "half", 0.5)
}

/// `Tan`: `sin(x) / cos(x)`.
pub(crate) fn tan(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (s, c) = (n.temp(OpKind::Sin {}, &[x])?, n.temp(OpKind::Cos {}, &[x])?);
    n.div(s, c)
}

/// `Asinh`: `log(|x| + sqrt(x * x + 1))` with the sign of `x`.
pub(crate) fn asinh(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let zero = n.number(x, "zero", 0.0)?;
    let negative = n.temp(OpKind::Less {}, &[x, zero])?;
    let back = n.temp(OpKind::Neg {}, &[x])?;
    let size = n.pick(negative, back, x)?;
    let square = n.mul(size, size)?;
    let square = n.shifted(square, "one", 1.0)?;
    let root = n.temp(OpKind::Sqrt {}, &[square])?;
    let sum = n.add(size, root)?;
    let y = n.temp(OpKind::Log {}, &[sum])?;
    let back = n.temp(OpKind::Neg {}, &[y])?;
    n.pick(negative, back, y)
}

/// `Acosh`: `log(x + sqrt(x * x - 1))`.
pub(crate) fn acosh(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let square = n.mul(x, x)?;
    let square = n.shifted(square, "one", -1.0)?;
    let root = n.temp(OpKind::Sqrt {}, &[square])?;
    let sum = n.add(x, root)?;
    n.temp(OpKind::Log {}, &[sum])
}

/// `Atanh`: `log((1 + x) / (1 - x)) / 2`.
pub(crate) fn atanh(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (above, below) = sides(n, x)?;
    let ratio = n.div(above, below)?;
    let y = n.temp(OpKind::Log {}, &[ratio])?;
    n.scaled(y, "half", 0.5)
}

/// `1 + x` and `1 - x`.
fn sides(n: &mut NodeCx<'_, '_>, x: ValueId) -> Result<(ValueId, ValueId), Fault> {
    let one = n.number(x, "one", 1.0)?;
    Ok((n.add(one, x)?, n.sub(one, x)?))
}

/// `Asin`: `atan(x / sqrt((1 + x) (1 - x)))`.
pub(crate) fn asin(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (above, below) = sides(n, x)?;
    let square = n.mul(above, below)?;
    let root = n.temp(OpKind::Sqrt {}, &[square])?;
    let slope = n.div(x, root)?;
    n.temp(OpKind::Atan {}, &[slope])
}

/// `Acos`: `2 atan(sqrt((1 - x) / (1 + x)))`, which keeps the digits of small angles.
pub(crate) fn acos(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (above, below) = sides(n, x)?;
    let ratio = n.div(below, above)?;
    let root = n.temp(OpKind::Sqrt {}, &[ratio])?;
    let half = n.temp(OpKind::Atan {}, &[root])?;
    n.scaled(half, "two", 2.0)
}

/// `IsNaN`: what differs from itself.
pub(crate) fn is_nan(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let equal = n.temp(OpKind::Equal {}, &[x, x])?;
    n.temp(OpKind::Not {}, &[equal])
}

/// `IsInf`, of either sign or of one.
pub(crate) fn is_inf(n: &mut NodeCx<'_, '_>, x: ValueId) -> Made {
    let (positive, negative) = (n.flag("detect_positive", true)?, n.flag("detect_negative", true)?);
    let (x, bound) = match (positive, negative) {
        (true, true) => (n.temp(OpKind::Abs {}, &[x])?, f32::INFINITY),
        (true, false) => (x, f32::INFINITY),
        (false, true) => (x, f32::NEG_INFINITY),
        (false, false) => {
            return n.temp(OpKind::Less {}, &[x, x]);
        }
    };
    let bound = n.number(x, "infinity", bound)?;
    n.temp(OpKind::Equal {}, &[x, bound])
}
