//! Chains of element-wise ops: the scalar expressions of the single ops one after another, each rounded to its type; of
//! each element of a product or a convolution, where the chain has a head.

use std::fmt::Write;

use memc_ir::ops::fused::{self, Along, Arg, Step, along};
use memc_ir::{DType, OpKind};

use crate::elementwise::expression;
use crate::kernel::{Lowering, float, int, name};
use crate::map::{Body, Read, map_reads};
use crate::random::threshold;
use crate::walk::{broadcast, channel};
use crate::{Call, conv, product};

/// A fused op; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let OpKind::Fused { body: whole, outs } = call.op else { return None };
    let fused::Body(steps) = whole;
    let head = whole.head();
    let space = &call.results.first()?.shape;
    let (mut reads, mut ways): (Vec<Read>, Vec<(u32, Along)>) = Default::default();
    let mut body = Body::default();
    let mut dtypes: Vec<DType> = Vec::new();
    // The head is `t0` already.
    dtypes.extend(head.map(|_| DType::F32));
    for (t, Step { op, args }) in steps.iter().enumerate().skip(dtypes.len()) {
        let (mut names, mut types) = (Vec::new(), Vec::new());
        for (k, arg) in args.iter().enumerate() {
            let x = match *arg {
                Arg::Step(s) => {
                    names.push(format!("t{s}"));
                    types.push(*dtypes.get(s as usize)?);
                    continue;
                }
                Arg::Operand(x) => x,
            };
            let (ty, way) = (call.operands.get(x as usize)?, along(op, k));
            types.push(ty.dtype);
            if way == Along::Single {
                names.push(format!("a{x}[0]"));
                continue;
            }
            let known = ways.iter().position(|known| *known == (x, way));
            let r = known.unwrap_or_else(|| {
                let strides =
                    if way == Along::Channel { channel(space) } else { broadcast(&ty.shape, space.len()) };
                reads.push(Read { operand: x as usize, strides });
                ways.push((x, way));
                reads.len() - 1
            });
            names.push(format!("x{r}"));
        }
        let dtype = fused::step_dtype(op, &types)?;
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
                let kept = format!("words{t}.of[word] >= {}u", threshold(ratio.0));
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
    body.results = outs.iter().map(|t| format!("t{t}")).collect();
    match head {
        Some(Step { op, args }) => product::with_epilogue("product_fused", call, op, &body, &reads)
            .or_else(|| conv::with_epilogue("conv_fused", call, (op, args.len()), &body, &reads)),
        None => Some(map_reads("fused", call, &body, &reads)),
    }
}
