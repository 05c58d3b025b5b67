//! Matrix products in tiles, for machines without cuBLASLt, and what is made of their elements before they
//! are written.

use memc_ir::OpKind;

use crate::Call;
use crate::index_space::{IndexSpace, broadcast};
use crate::kernel::{BLOCK, Launch, Lowering, blocks, float, name};
use crate::map::{Body, Read, entry, put};

/// Rows and columns of a tile of results.
pub(crate) const TILE: u64 = 64;
/// Most blocks along an axis of a grid other than x.
pub(crate) const SIDE: u64 = 65_535;

/// Tiles of a product of `m` by `n` results.
pub(crate) fn tiles(m: u64, n: u64) -> u64 {
    m.div_ceil(TILE).saturating_mul(n.div_ceil(TILE))
}

/// Matrix products; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    with_epilogue("product", call, call.op, &Body::of("t0"), &[])
}

/// The product that `op` is of the first operands, and for each element of it, `t0`, what `body` makes of it
/// and of the elements of `reads`; `None` where the op is no product.
pub(crate) fn with_epilogue(
    stem: &str,
    call: &Call,
    op: &OpKind,
    body: &Body,
    reads: &[Read],
) -> Option<Lowering> {
    let (flags, alpha, beta) = match op {
        OpKind::MatMul { trans_a, trans_b, alpha } => ((*trans_a, *trans_b), alpha.0, None),
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => ((*trans_a, *trans_b), alpha.0, Some(beta.0)),
        _ => return None,
    };
    let launch = product(stem, call, flags, (alpha, beta), body, reads)?;
    Some(Lowering::of(call.results.iter().all(|y| y.numel() > 0).then_some(launch)))
}

fn product(
    stem: &str,
    call: &Call,
    (trans_a, trans_b): (bool, bool),
    (alpha, beta): (f32, Option<f32>),
    body: &Body,
    reads: &[Read],
) -> Option<Launch> {
    let (a, b, y) = (call.operands.first()?, call.operands.get(1)?, call.results.first()?);
    let (lead_a, &[ra, ca]) = a.shape.split_last_chunk::<2>()?;
    let (lead_b, _) = b.shape.split_last_chunk::<2>()?;
    let (lead, &[mut m, n]) = y.shape.split_last_chunk::<2>()?;
    let k = if trans_a { ra } else { ca };
    let mut batches: Vec<u64> = lead.to_vec();
    if lead_b.iter().all(|&d| d == 1) && !trans_a {
        // One right-hand side for all: the leading axes are more rows.
        m *= batches.iter().product::<u64>();
        batches = vec![1; lead.len()];
    }
    let scaled = |shape: &[u64], size: u64| -> Vec<i64> {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        broadcast(shape, lead.len()).into_iter().map(|s| s.saturating_mul(size)).collect()
    };
    let strides = [scaled(lead_a, ra * ca), scaled(lead_b, k * n)];
    let walk = IndexSpace::new(&batches, &strides);
    let t = name(a.dtype);
    let mut entry = entry(call, [body]);
    let mut sum = format!("{} * sum", float(alpha));
    if let Some(beta) = beta.filter(|&beta| beta != 0.0) {
        let c = broadcast(&call.operands.get(2)?.shape, 2);
        let &[row, col] = c.as_slice() else { return None };
        entry = entry.int("c_row", row).int("c_col", col);
        sum = format!("{} * up(a2[i * c_row + j * c_col]) + {sum}", float(beta));
    }
    let entry = entry.int("m", m).int("n", n).int("k", k).int("batches", walk.len());
    let (entry, offsets) = walk.offsets(entry, "o", "z");
    let (entry, put) = put(entry, call, body, reads);
    let a_at = if trans_a { "t * m + i" } else { "i * k + t" };
    let b_at = if trans_b { "j * k + t" } else { "t * n + j" };
    let idx = if y.numel() < 1 << 31 { "u32" } else { "u64" };
    let text = format!(
        "typedef {idx} idx;\n{}{put}for (idx z = blockIdx.z; z < (idx)batches; z += gridDim.z) {{\n{offsets}\
         const {t}* lhs = a0 + o0;\nconst {t}* rhs = a1 + o1;\n\
         tiled<{}, {trans_b}, i64>(\n    m, n, 0, k, [=](i64 i, i64 t) {{ return up(lhs[{a_at}]); }},\n    \
         [=](i64 t, i64 j) {{ return up(rhs[{b_at}]); }},\n    \
         [=](i64 i, i64 j, f32 sum) {{ put((idx)(((i64)z * m + i) * n + j), {sum}); }});\n}}",
        body.before, !trans_a
    );
    let z = walk.len().clamp(1, SIDE) as u32;
    Some(entry.launch(stem, [blocks(tiles(m, n)), 1, z], BLOCK, &text))
}
