//! Running an op on narrow element types as calls of itself on wide ones; see [`Widening`].

use memc_ir::TensorType;
use memc_ir::ops::Widening;
use rayon::prelude::*;

use crate::call::dispatch;
use crate::convert::{narrow, widen};
use crate::error::KernelError;
use crate::view::{Ctx, Operand};
use crate::walk::ext;

type Done = Result<(), KernelError>;

/// Most operands and results of an op that is computed on wide types.
const OPERANDS: usize = 8;
const RESULTS: usize = 3;
/// Most calls side by side.
const LANES: usize = 4;

/// One call: its rows, its part of every result, and its workspace.
struct Call<'b> {
    first: usize,
    rows: usize,
    out: [&'b mut [u8]; RESULTS],
    work: &'b mut [u8],
}

/// Types of operands and results.
type Types = [Vec<TensorType>; 2];

fn nothing<'b>() -> [&'b mut [u8]; RESULTS] {
    std::array::from_fn(|_| Default::default())
}

/// Cuts `bytes` off the front.
fn cut<'b>(from: &mut &'b mut [u8], bytes: usize) -> Option<&'b mut [u8]> {
    let (head, tail) = std::mem::take(from).split_at_mut_checked(bytes)?;
    *from = tail;
    Some(head)
}

/// Cuts room for `elements` wide elements off the front of the workspace, keeping alignment.
fn room<'b>(c: &Ctx, work: &mut &'b mut [u8], elements: usize) -> Result<&'b mut [u8], KernelError> {
    let bytes = elements.saturating_mul(4);
    let whole = usize::try_from(memc_ir::aligned(bytes as u64)).ok();
    let cut = whole.and_then(|whole| cut(work, whole)).and_then(|room| room.get_mut(..bytes));
    cut.ok_or_else(|| c.fail(format!("the workspace is short of {bytes} bytes")))
}

/// Runs the op of `c`, widened where its types are narrow.
pub(crate) fn any(c: &Ctx, results: &mut [&mut [u8]], workspace: &mut [u8]) -> Done {
    if c.types.iter().chain(c.results).any(|t| t.dtype.is_narrow()) {
        let types: Vec<&TensorType> = c.types.iter().collect();
        if let Some(plan) = c.op.widening(&types, &c.results.iter().collect::<Vec<_>>()) {
            return run(c, &plan, results, workspace);
        }
    }
    dispatch(c, results, workspace)
}

/// Runs the op of `c` as `plan` cuts it. The workspace has [`Widening::workspace`] bytes.
fn run(c: &Ctx, plan: &Widening, results: &mut [&mut [u8]], workspace: &mut [u8]) -> Done {
    if c.operands.len() > OPERANDS || results.len() > RESULTS || plan.lanes > LANES as u64 {
        return Err(c.fail("too many operands for narrow types"));
    }
    let mut work = workspace;
    let mut shared: [&[u8]; OPERANDS] = [&[]; OPERANDS];
    for (i, piece) in plan.operands.iter().enumerate() {
        if piece.row.is_none() && piece.is_converted {
            let to = room(c, &mut work, ext(c.types[i].numel()))?;
            widen(c.types[i].dtype, c.slice::<u8>(i)?, to);
            shared[i] = to;
        }
    }
    let (rows, group) = (ext(plan.rows), ext(plan.group));
    let full = plan.types(plan.group);
    let last = plan.types((rows % group) as u64);
    let lane = ext(plan.lane_bytes());
    let lanes = ext(plan.lanes);
    let mut rest: [&mut [u8]; RESULTS] = nothing();
    rest.iter_mut().zip(results).for_each(|(rest, out)| *rest = out);
    let mut first = 0;
    while first < rows {
        let mut calls: [Option<Call>; LANES] = [const { None }; LANES];
        let mut free = &mut *work;
        for slot in calls.iter_mut().take(lanes) {
            let n = group.min(rows - first);
            if n == 0 {
                break;
            }
            let mut out: [&mut [u8]; RESULTS] = nothing();
            for (j, piece) in plan.results.iter().enumerate() {
                let bytes = n * ext(piece.row.unwrap_or(0)) * ext(c.results[j].dtype.bytes());
                out[j] = cut(&mut rest[j], bytes).ok_or_else(|| c.fail("a result is short"))?;
            }
            let work = cut(&mut free, lane).ok_or_else(|| c.fail("the workspace is short of a lane"))?;
            *slot = Some(Call { first, rows: n, out, work });
            first += n;
        }
        let one = |slot: &mut Option<Call>| match slot {
            Some(call) => call.run(c, plan, &shared, if call.rows == group { &full } else { &last }),
            None => Ok(()),
        };
        if lanes == 1 {
            one(&mut calls[0])?;
        } else {
            calls.par_iter_mut().try_for_each(one)?;
        }
    }
    Ok(())
}

impl Call<'_> {
    fn run(&mut self, c: &Ctx, plan: &Widening, shared: &[&[u8]; OPERANDS], types: &Types) -> Done {
        let (first, rows) = (self.first, self.rows);
        let (out, mut work) = (&mut self.out, &mut *self.work);
        let mut operands = [Operand::Bytes(&[]); OPERANDS];
        for (i, piece) in plan.operands.iter().enumerate() {
            let Some(row) = piece.row.map(ext) else {
                operands[i] =
                    if piece.is_converted { Operand::Bytes(shared[i]) } else { Operand::Bytes(c.slice(i)?) };
                continue;
            };
            let width = row * ext(c.types[i].dtype.bytes());
            let own = |b: &'_ [u8]| first * width..(first * width + rows * width).min(b.len());
            operands[i] = match c.operands[i] {
                Operand::Bytes(b) if piece.is_converted => {
                    let to = room(c, &mut work, rows * row)?;
                    widen(c.types[i].dtype, &b[own(b)], to);
                    Operand::Bytes(to)
                }
                Operand::Bytes(b) => Operand::Bytes(&b[own(b)]),
                Operand::Result(j) if piece.is_converted => {
                    let to = room(c, &mut work, rows * row)?;
                    widen(c.types[i].dtype, out[j], to);
                    Operand::Bytes(to)
                }
                shared => shared,
            };
        }
        let mut wide: [&mut [u8]; RESULTS] = nothing();
        for (j, piece) in plan.results.iter().enumerate() {
            wide[j] = if piece.is_converted {
                room(c, &mut work, rows * ext(piece.row.unwrap_or(0)))?
            } else {
                std::mem::take(&mut out[j])
            };
        }
        let per_row = plan.results.first().and_then(|p| p.row).map_or(0, ext);
        let call = Ctx {
            op: c.op,
            types: &types[0],
            results: &types[1],
            operands: &operands[..plan.operands.len()],
            first: c.first + first * per_row,
            flat: c.flat,
        };
        dispatch(&call, &mut wide[..plan.results.len()], work)?;
        for (j, piece) in plan.results.iter().enumerate() {
            if piece.is_converted {
                narrow(c.results[j].dtype, wide[j], out[j]);
            }
        }
        Ok(())
    }
}
