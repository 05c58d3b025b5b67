//! Data movement: elements move by width, unread.

use memc_ir::attr::Scalar;
use memc_ir::{DType, OpKind, TensorType};

use crate::Call;
use crate::index_space::{IndexSpace, broadcast, strides};
use crate::kernel::{Entry, Launch, Lowering, raw};
use crate::rows::pack;

/// Data movement; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let y = call.results.first()?;
    let x = call.operands.first();
    Some(match call.op {
        OpKind::Copy {} | OpKind::Reshape { .. } => copy(call),
        OpKind::Transpose { perm } => {
            let own = strides(&x?.shape);
            let from = perm.iter().map(|&p| usize::try_from(p).ok().and_then(|p| own.get(p).copied()));
            read(y, 0, from.collect::<Option<_>>()?)
        }
        OpKind::Broadcast { .. } => read(y, 0, broadcast(&x?.shape, y.rank())),
        OpKind::Slice { starts, steps, .. } => {
            let own = strides(&x?.shape);
            let base = own.iter().zip(starts).map(|(s, &at)| s.saturating_mul(at)).sum();
            read(y, base, own.iter().zip(steps).map(|(s, &step)| s.saturating_mul(step)).collect())
        }
        OpKind::Concat { axis } => concat(call, y, usize::try_from(*axis).ok()?)?,
        OpKind::Pad { before, value, .. } => {
            let (x, own) = (x?, strides(&y.shape));
            let at = own.iter().zip(before);
            let base = at.map(|(&s, &b)| s.saturating_mul(i64::try_from(b).unwrap_or(i64::MAX))).sum();
            let launches =
                [fill(y, *value), moved(0, &x.shape, y.dtype, (0, strides(&x.shape)), (base, own))];
            Lowering::of(launches.into_iter().flatten())
        }
        OpKind::Fill { value, .. } => Lowering::of(fill(y, *value)),
        _ => return None,
    })
}

/// Copies operand 0 to result 0, which may be the same bytes.
pub(crate) fn copy(call: &Call) -> Lowering {
    let Some(y) = call.results.first() else { return Lowering::default() };
    Lowering::of(moved(0, &[y.numel()], y.dtype, (0, vec![1]), (0, vec![1])))
}

/// Result 0 in order, from operand 0 with a first element and strides.
fn read(y: &TensorType, base: i64, from: Vec<i64>) -> Lowering {
    Lowering::of(moved(0, &y.shape, y.dtype, (base, from), (0, strides(&y.shape))))
}

/// Moves a block of `extents` from operand `i` to result 0; each has a first element and strides.
fn moved(
    i: usize,
    extents: &[u64],
    dtype: DType,
    (first_x, from): (i64, Vec<i64>),
    (first_y, to): (i64, Vec<i64>),
) -> Option<Launch> {
    let walk = IndexSpace::new(extents, &[from, to]);
    let entry = Entry::new()
        .operand(i, raw(dtype), "x")
        .result(0, raw(dtype), "y")
        .int("first_x", first_x)
        .int("first_y", first_y);
    let most = pack(dtype, first_x.unsigned_abs() | first_y.unsigned_abs());
    let n = walk.neighbours(most);
    let (entry, text) = walk.offsets(entry, "o", "at");
    let body =
        format!("const idx at = i * {n};\n{text}put(y + (first_y + o1), pack<{n}>(x + (first_x + o0)));");
    entry.each_pack("move", walk.len(), n, &body)
}

fn concat(call: &Call, y: &TensorType, axis: usize) -> Option<Lowering> {
    let to = strides(&y.shape);
    let (mut launches, mut at) = (Vec::new(), 0);
    for (i, x) in call.operands.iter().enumerate() {
        launches.extend(moved(i, &x.shape, y.dtype, (0, strides(&x.shape)), (at, to.clone())));
        at += to.get(axis)?.saturating_mul(i64::try_from(*x.shape.get(axis)?).ok()?);
    }
    Some(Lowering::of(launches))
}

fn fill(y: &TensorType, value: Scalar) -> Option<Launch> {
    let bits = value.bits(y.dtype)?;
    let entry = Entry::new().result(0, raw(y.dtype), "y").int("bits", bits as i64);
    entry.each("fill", y.numel(), &format!("y[i] = ({})bits;", raw(y.dtype)))
}
