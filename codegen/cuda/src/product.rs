//! Matrix products in tiles, for machines without cuBLASLt.

use memc_ir::OpKind;

use crate::Call;
use crate::kernel::{BLOCK, Entry, Launch, Lowering, blocks, float, name};
use crate::walk::{Walk, broadcast};

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
    let (flags, alpha, beta) = match call.op {
        OpKind::MatMul { trans_a, trans_b, alpha } => ((*trans_a, *trans_b), alpha.0, None),
        OpKind::Gemm { trans_a, trans_b, alpha, beta } => ((*trans_a, *trans_b), alpha.0, Some(beta.0)),
        _ => return None,
    };
    let launch = product(call, flags, alpha, beta)?;
    Some(Lowering::of(call.results.iter().all(|y| y.numel() > 0).then_some(launch)))
}

fn product(call: &Call, (trans_a, trans_b): (bool, bool), alpha: f32, beta: Option<f32>) -> Option<Launch> {
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
    let walk = Walk::new(&batches, &strides);
    let t = name(y.dtype);
    let mut entry = Entry::new().operand(0, t, "a").operand(1, t, "b").result(0, t, "y");
    let mut put = format!("{} * sum", float(alpha));
    if let Some(beta) = beta.filter(|&beta| beta != 0.0) {
        let c = broadcast(&call.operands.get(2)?.shape, 2);
        let &[row, col] = c.as_slice() else { return None };
        entry = entry.operand(2, t, "c").int("c_row", row).int("c_col", col);
        put = format!("{} * up(c[i * c_row + j * c_col]) + {put}", float(beta));
    }
    let entry = entry.int("m", m).int("n", n).int("k", k).int("batches", walk.len());
    let (entry, offsets) = walk.offsets(entry, "o", "z");
    let a_at = if trans_a { "t * m + i" } else { "i * k + t" };
    let b_at = if trans_b { "j * k + t" } else { "t * n + j" };
    let body = format!(
        "typedef u64 idx;\nfor (idx z = blockIdx.z; z < (idx)batches; z += gridDim.z) {{\n{offsets}\
         const {t}* lhs = a + o0;\nconst {t}* rhs = b + o1;\n{t}* to = y + (i64)z * m * n;\n\
         tiled<{}, {trans_b}>(\n    m, n, 0, k, [=](i64 i, i64 t) {{ return up(lhs[{a_at}]); }},\n    \
         [=](i64 t, i64 j) {{ return up(rhs[{b_at}]); }},\n    \
         [=](i64 i, i64 j, f32 sum) {{ to[i * n + j] = down<{t}>({put}); }});\n}}",
        !trans_a
    );
    let z = walk.len().clamp(1, SIDE) as u32;
    Some(entry.launch("product", [blocks(tiles(m, n)), 1, z], BLOCK, &body))
}
