//! Chains of element-wise ops: the scalar expressions of the single ops one after another, each rounded to
//! its type; of each element of a product or a convolution, where the chain has a head.

use std::fmt::Write;

use memc_ir::ops::fused::{self, Along, Arg, Step, along, is_head};
use memc_ir::{DType, OpKind, TensorType};

use crate::elementwise::expression;
use crate::index_space::{broadcast, channel};
use crate::kernel::{Lowering, float, int, name};
use crate::map::{Body, Read, map_reads};
use crate::random::threshold;
use crate::{Call, conv, product};

/// A fused op; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let OpKind::Fused { body: whole, outs } = call.op else { return None };
    let space = &call.results.first()?.shape;
    let addresses: Vec<Source> = (0..call.operands.len()).map(|x| Source::Address(format!("a{x}"))).collect();
    let mut reads = Vec::new();
    let mut body = chain(&whole.0, &addresses, call.operands, space, 0, &mut reads)?;
    body.results = outs.iter().map(|t| format!("t{t}")).collect();
    match whole.head() {
        Some(Step { op, args }) => product::with_epilogue("product_fused", call, op, &body, &reads)
            .or_else(|| conv::with_epilogue("conv_fused", call, (op, args.len()), &body, &reads)),
        None => Some(map_reads("fused", call, &body, &reads)),
    }
}

/// Place where a chain finds an operand.
pub(crate) enum Source {
    /// At this address.
    Address(String),
    /// In this variable, in its wide type.
    Variable(String),
}

/// Steps, the first of them `t{first}`, on operands of these types; adds to `reads` what they read. Its
/// results are left out, and so is a head, which is a variable already.
pub(crate) fn chain(
    steps: &[Step],
    sources: &[Source],
    operands: &[TensorType],
    space: &[u64],
    first: usize,
    reads: &mut Vec<Read>,
) -> Option<Body> {
    let mut known_reads: Vec<(u32, Along, usize)> = Vec::new();
    let mut body = Body::default();
    let mut dtypes: Vec<DType> =
        steps.iter().take(1).filter(|s| is_head(&s.op)).map(|_| DType::F32).collect();
    for (t, Step { op, args }) in steps.iter().enumerate().skip(dtypes.len()) {
        let (mut names, mut types) = (Vec::new(), Vec::new());
        for (k, arg) in args.iter().enumerate() {
            let x = match *arg {
                Arg::Step(s) => {
                    names.push(format!("t{}", first + s as usize));
                    types.push(*dtypes.get(s as usize)?);
                    continue;
                }
                Arg::Operand(x) => x,
            };
            let (ty, axes) = (operands.get(x as usize)?, along(op, k));
            types.push(ty.dtype);
            let from = match sources.get(x as usize)? {
                Source::Address(from) => from,
                Source::Variable(name) => {
                    names.push(name.clone());
                    continue;
                }
            };
            if axes == Along::Single {
                names.push(format!("{from}[0]"));
                continue;
            }
            let known = known_reads.iter().find(|known| (known.0, known.1) == (x, axes)).map(|known| known.2);
            let r = known.unwrap_or_else(|| {
                let strides =
                    if axes == Along::Channel { channel(space) } else { broadcast(&ty.shape, space.len()) };
                reads.push(Read { from: from.clone(), strides });
                known_reads.push((x, axes, reads.len() - 1));
                reads.len() - 1
            });
            names.push(format!("x{r}"));
        }
        let dtype = fused::step_dtype(op, &types)?;
        let t = first + t;
        let value = match op {
            OpKind::Cast { to } => {
                let x = names.first()?;
                match *types.first()? {
                    from if from == *to => x.clone(),
                    // Any byte but zero is true.
                    DType::Bool => format!("up(cast<{}>((i32)({x} != 0)))", name(*to)),
                    _ => format!("up(cast<{}>({x}))", name(*to)),
                }
            }
            OpKind::Dropout { ratio, seed, stream } | OpKind::RandomMask { ratio, seed, stream, .. } => {
                let step = names.last()?;
                body.params.push((format!("stream{t}"), *stream));
                let _ = writeln!(body.before, "const u64 step{t} = (u64)(i64){step};");
                let seed = int(*seed);
                let _ = writeln!(
                    body.shared,
                    "const Words words{t} = philox(quad, (u32)stream{t}, step{t}, (u64){seed});"
                );
                let kept = format!("pick(words{t}, word) >= {}u", threshold(ratio.0));
                let scale = float(1.0 / (1.0 - ratio.0));
                match names.as_slice() {
                    [x, _] => format!("up(down<{}>({kept} ? {x} * {scale} : 0.0f))", name(dtype)),
                    _ => format!("(i32)({kept})"),
                }
            }
            _ => format!("up(down<{}>({}))", name(dtype), expression(op, &names)?),
        };
        let _ = writeln!(body.lines, "const auto t{t} = {value};");
        dtypes.push(dtype);
    }
    Some(body)
}
