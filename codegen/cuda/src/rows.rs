//! Shapes of row and channel kernels: elements of a load, elements that a thread holds, threads, parts.

use memc_ir::DType;

use crate::kernel::{BLOCK, Entry, Launch, blocks};
use crate::reduce::parts;

/// Bytes of the widest load.
const WIDEST: u64 = 16;
/// Most elements of one row that a thread holds in registers.
const HELD: u64 = 16;

/// Most neighbours that one load takes, where every row begins at a multiple of `n` elements.
pub(crate) fn pack(dtype: DType, n: u64) -> u64 {
    let mut elements = (WIDEST / dtype.bytes()).min(8);
    while !n.is_multiple_of(elements) {
        elements /= 2;
    }
    elements
}

/// Extents before, at and behind `axis`.
pub(crate) fn around(shape: &[u64], axis: i64) -> Option<(u64, u64, u64)> {
    let axis = usize::try_from(axis).ok()?;
    let (outer, rest) = shape.split_at_checked(axis)?;
    let (&extent, inner) = rest.split_first()?;
    Some((outer.iter().product(), extent, inner.iter().product()))
}

/// Rows from which on there are enough for each to be taken by a warp.
const MANY: u64 = 1024;
/// Lanes of a warp.
const WARP: u64 = 32;
/// Most rows that are cut into parts, where each is long: a block for each would leave much of a device idle.
const FEW: u64 = 128;

/// Parts that each of `rows` rows of `n` elements is cut into.
pub(crate) fn row_parts(rows: u64, n: u64) -> u64 {
    if rows <= FEW { parts(rows, n, 4096) } else { 1 }
}

/// A row of `n` elements, taken by one team: a warp or a block.
pub(crate) struct RowForm {
    /// Elements of a load.
    pub(crate) pack: u64,
    /// Loads that a thread holds; zero where a row is too long for that and is read again for each pass.
    held: u64,
    /// Lanes of a warp that take a row together; zero where a block does.
    lanes: u64,
    /// Threads of the block.
    block: u32,
}

impl RowForm {
    /// Of `rows` rows of `n` elements of `tensors` tensors, whose elements are this type's.
    pub(crate) fn new(dtype: DType, [rows, n]: [u64; 2], tensors: u64) -> RowForm {
        let pack = pack(dtype, n);
        let packs = n / pack;
        let held = packs.div_ceil(WARP);
        if rows >= MANY && held * pack * tensors <= 2 * HELD {
            return RowForm { pack, held, lanes: WARP, block: BLOCK };
        }
        let held = packs.div_ceil(BLOCK.into());
        let held = if held * pack * tensors <= 2 * HELD && held * pack <= HELD { held } else { 0 };
        let threads = packs.div_ceil(held.max(1)).clamp(1, BLOCK.into()).next_multiple_of(WARP);
        RowForm { pack, held, lanes: 0, block: u32::try_from(threads).unwrap_or(BLOCK) }
    }

    /// Template arguments: elements of a load, loads that a thread holds, and lanes of a team.
    pub(crate) fn arguments(&self) -> String {
        format!("{}, {}, {}", self.pack, self.held, self.lanes)
    }

    /// The type that says what a team is.
    pub(crate) fn team(&self) -> String {
        format!("Team<{}>", self.lanes)
    }

    /// A launch with a team for each of `rows` rows of `n` elements.
    pub(crate) fn launch(&self, entry: Entry, stem: &str, [rows, n]: [u64; 2], body: &str) -> Launch {
        let in_block = u64::from(self.block).checked_div(self.lanes).unwrap_or(1);
        let grid = [blocks(rows.div_ceil(in_block)), 1, 1];
        entry.int("rows", rows).int("n", n).launch(stem, grid, self.block, body)
    }
}

/// A channel of a batch of planes, taken by blocks of [`BLOCK`] threads in parts.
pub(crate) struct ChannelForm {
    /// Elements of a load.
    pub(crate) pack: u64,
    /// Whether some threads take a plane by one load each, and the block several planes at once.
    pub(crate) is_short: bool,
    /// Those threads, a power of two.
    pub(crate) lanes: u64,
    /// Parts along the batch.
    pub(crate) image_parts: u64,
    /// Parts of each plane.
    pub(crate) plane_parts: u64,
}

impl ChannelForm {
    pub(crate) fn new(dtype: DType, [batch, channels, plane]: [u64; 3]) -> ChannelForm {
        let pack = pack(dtype, plane);
        let packs = plane / pack;
        let is_short = packs <= BLOCK.into();
        let lanes = if is_short { packs.next_power_of_two() } else { BLOCK.into() };
        let at_once = u64::from(BLOCK) / lanes;
        let wanted = parts(channels, batch.saturating_mul(plane), 4096);
        let image_parts = wanted.min(batch.div_ceil(at_once)).max(1);
        let plane_parts = (wanted / image_parts).min(packs / 1024).max(1);
        ChannelForm { pack, is_short, lanes, image_parts, plane_parts }
    }

    pub(crate) fn parts(&self) -> u64 {
        self.image_parts * self.plane_parts
    }
}
