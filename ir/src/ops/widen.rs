//! Execution of ops on narrow element types: on wider ones, in groups of rows, with one rounding at the end.
//!
//! 16-bit floats are computed in `f32`, 8-bit integers in `i32`. An op that only moves elements takes them as
//! they are. Every other op is cut into calls of itself on wide types. Operands and results are converted on
//! the way, in workspace that the op's cost declares. A cut is along leading axes, where calls are
//! independent; an op that sums over its leading axis is one call. The cut depends on types only.

use super::{Family, OpKind};
use crate::attr::ScatterMode;
use crate::types::{DType, TensorType};

/// Most rows processed side by side.
const MAX_LANES: u64 = 4;
/// Elements of the largest tensor of one call, unless one row has more.
const CALL: u64 = 16 << 10;
/// The same for matrix products, whose other operand every call reads once more.
const PRODUCT: u64 = 256 << 10;

/// One operand or result, as the calls that an op is cut into see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its wide type, whole.
    ty: TensorType,
    /// Its leading axes that make rows.
    lead: usize,
    /// Elements of a row; `None` where every call takes the whole tensor.
    pub row: Option<u64>,
    /// Whether elements are converted.
    pub is_converted: bool,
}

/// An op on narrow types as calls on wide ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Widening {
    /// Rows in all.
    pub rows: u64,
    /// Rows of a call; the last one may have fewer.
    pub group: u64,
    /// Calls side by side.
    pub lanes: u64,
    /// One for each operand.
    pub operands: Vec<Piece>,
    /// One for each result.
    pub results: Vec<Piece>,
    /// Scratch bytes of one call.
    pub inner: u64,
}

/// Relation of an operand to the leading axes of the result.
#[derive(Clone, Copy)]
enum Meets {
    /// It has leading axes of its own.
    Leading,
    /// It broadcasts.
    Broadcast,
    /// Every call takes all of it.
    Whole,
}

/// The type that elements of this one are computed in.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::I8 | DType::U8 => DType::I32,
        other => other,
    }
}

fn aligned(elements: u64) -> u64 {
    crate::module::aligned(elements.saturating_mul(4))
}

impl Piece {
    fn new(ty: &TensorType, row: Option<u64>, lead: usize) -> Piece {
        let to = wide(ty.dtype);
        Piece { ty: TensorType::new(to, ty.shape.clone()), lead, row, is_converted: to != ty.dtype }
    }

    /// Bytes of the converted elements of a call of `group` rows, rounded up for alignment; all elements
    /// without rows.
    fn converted(&self, group: u64) -> u64 {
        let elements = self.row.map_or_else(|| self.ty.numel(), |row| row.saturating_mul(group));
        if self.is_converted { aligned(elements) } else { 0 }
    }
}

impl Widening {
    /// Workspace that all calls share, in bytes; it comes first.
    pub fn shared_bytes(&self) -> u64 {
        self.operands.iter().filter(|p| p.row.is_none()).map(|p| p.converted(1)).sum()
    }

    /// Workspace of one lane, in bytes: converted operands, converted results, scratch.
    pub fn lane_bytes(&self) -> u64 {
        let rows = self.operands.iter().chain(&self.results).filter(|p| p.row.is_some());
        rows.map(|p| p.converted(self.group)).fold(crate::module::aligned(self.inner), u64::saturating_add)
    }

    /// Workspace in bytes.
    pub fn workspace(&self) -> u64 {
        self.shared_bytes().saturating_add(self.lane_bytes().saturating_mul(self.lanes))
    }

    /// Types of operands and results in a call of `rows` rows.
    pub fn types(&self, rows: u64) -> [Vec<TensorType>; 2] {
        [&self.operands, &self.results].map(|pieces| pieces.iter().map(|p| self.ty(p, rows)).collect())
    }

    /// The rows' axes become one of extent `rows` behind axes of extent 1, so that the others keep their
    /// place.
    fn ty(&self, piece: &Piece, rows: u64) -> TensorType {
        let mut ty = piece.ty.clone();
        // A tensor that every call takes whole may have fewer axes.
        let lead = piece.row.and_then(|_| ty.shape.get_mut(..piece.lead));
        if let Some((last, outer)) = lead.and_then(<[u64]>::split_last_mut) {
            outer.fill(1);
            *last = rows;
        }
        ty
    }
}

impl OpKind {
    /// The calls of the op on these types when some are narrow; `None` when it takes them as they are.
    pub fn widening(&self, operands: &[&TensorType], results: &[&TensorType]) -> Option<Widening> {
        let first = results.first()?;
        if !operands.iter().chain(results).any(|t| t.dtype.is_narrow()) {
            return None;
        }
        let (limit, most, meets) = self.cut(operands, first)?;
        let (split, rows) = (0..=most.min(first.rank())).rev().find_map(|split| {
            let lead = &first.shape[..split];
            let rows: Option<Vec<Option<u64>>> =
                operands.iter().enumerate().map(|(i, t)| row_of(t, first.rank(), lead, meets(i))).collect();
            rows.map(|rows| (split, rows))
        })?;
        let count: u64 = first.shape[..split].iter().product();
        let lead = |i: usize, t: &TensorType| match meets(i) {
            // A tensor that broadcasts may lack outer axes.
            Meets::Broadcast => (split + t.rank()).saturating_sub(first.rank()),
            _ => split,
        };
        let operands: Vec<Piece> = operands
            .iter()
            .zip(rows)
            .enumerate()
            .map(|(i, (t, row))| Piece::new(t, row, lead(i, t)))
            .collect();
        let results: Vec<Piece> =
            results.iter().map(|t| Piece::new(t, Some(t.numel() / count.max(1)), split)).collect();
        let largest = operands.iter().chain(&results).filter_map(|p| p.row).max().unwrap_or(0);
        // Groups of four rows keep the blocks of four elements that random ops work in.
        let group = (limit / largest.max(1)).clamp(1, count.max(1));
        let group = if group > 4 { group / 4 * 4 } else { group };
        let lanes = count.div_ceil(group).clamp(1, MAX_LANES);
        let mut plan = Widening { rows: count, group, lanes, operands, results, inner: 0 };
        let [o, r] = plan.types(group);
        plan.inner = self.row_cost(&o.iter().collect::<Vec<_>>(), &r.iter().collect::<Vec<_>>()).workspace;
        Some(plan)
    }

    /// The op's cut; `None` when it never looks at elements, or converts them itself.
    fn cut(&self, operands: &[&TensorType], result: &TensorType) -> Option<Cut> {
        use OpKind::*;
        let leading: fn(usize) -> Meets = |_| Meets::Leading;
        let broadcast: fn(usize) -> Meets = |_| Meets::Broadcast;
        let first_only: fn(usize) -> Meets = |i| if i == 0 { Meets::Leading } else { Meets::Whole };
        let before = |axis: i64| usize::try_from(axis).unwrap_or(0);
        let family = self.def().family;
        let elementwise =
            matches!(family, Family::ElementWise | Family::Optimizer) || matches!(self, Dropout { .. });
        Some(match self {
            Copy {} | Reshape { .. } | Transpose { .. } | Broadcast { .. } | Slice { .. } => return None,
            Concat { .. } | Pad { .. } | Fill { .. } | Select {} | Cast { .. } => return None,
            Gather { .. } | GatherElements { .. } | GatherNd { .. } => return None,
            RandomMask { .. } | RandomUniform { .. } | RandomNormal { .. } => return None,
            Increment { .. } | Fused { .. } | FusedNorm { .. } | MatMulBiasGrad { .. } => return None,
            ScatterElements { mode: ScatterMode::Replace, .. }
            | ScatterNd { mode: ScatterMode::Replace, .. } => return None,

            Softmax { axis } | LogSoftmax { axis } | SoftmaxGrad { axis } | TopK { axis, .. } => {
                (CALL, before(*axis), leading)
            }
            LayerNorm { axis, .. } => (CALL, before(*axis), first_only),
            ReduceSum { axes, .. } | ReduceMean { axes, .. } | ReduceMax { axes, .. } => {
                let kept = axes.first().map_or(result.rank(), |&a| usize::try_from(a).unwrap_or(0));
                (CALL, kept, leading)
            }
            Conv { .. } | ConvGradInput { .. } | BatchNorm {} => (CALL, 1, first_only),
            AveragePool { .. } | AveragePoolGrad { .. } | MaxPoolGradInput { .. } => (CALL, 2, leading),
            MatMul { trans_a: false, .. }
                if operands.get(1).is_some_and(|b| b.rank() == 2)
                    && operands.first().is_some_and(|a| a.rank() == result.rank()) =>
            {
                (PRODUCT, result.rank().saturating_sub(1), first_only)
            }
            MatMul { .. } => (PRODUCT, result.rank().saturating_sub(2), broadcast),
            Gemm { trans_a: false, .. } => (PRODUCT, 1, |i| match i {
                0 => Meets::Leading,
                1 => Meets::Whole,
                _ => Meets::Broadcast,
            }),

            _ if elementwise => (CALL, result.rank(), broadcast),
            // The others sum over their leading axis, or index the whole tensor: one call.
            _ => (CALL, 0, leading),
        })
    }
}

/// Elements of a call, leading axes of the first result that may be cut, and relation of each operand to
/// them.
type Cut = (u64, usize, fn(usize) -> Meets);

/// Elements of a row of an operand under the leading extents `lead` of a result of rank `rank`. `Some(None)`
/// where each call takes all of the operand, `None` where it cannot be cut there.
fn row_of(ty: &TensorType, rank: usize, lead: &[u64], meets: Meets) -> Option<Option<u64>> {
    let count = lead.iter().product::<u64>().max(1);
    let by_rows = Some(Some(ty.numel() / count));
    match meets {
        Meets::Whole => Some(None),
        Meets::Leading => (ty.shape.get(..lead.len()) == Some(lead)).then_some(by_rows).flatten(),
        Meets::Broadcast => {
            // A learning rate may have more axes than a parameter, of one element each.
            let Some(skipped) = rank.checked_sub(ty.rank()) else {
                return if lead.is_empty() { by_rows } else { Some(None) };
            };
            let extent = |i: usize| i.checked_sub(skipped).map_or(1, |i| ty.shape[i]);
            if (0..lead.len()).all(|i| extent(i) == lead[i]) {
                by_rows
            } else if (0..lead.len()).all(|i| extent(i) == 1) {
                Some(None)
            } else {
                None
            }
        }
    }
}
