//! Kernels and launches, and how their text is put together.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use memc_ir::DType;

/// Device functions that every kernel may call; see the files.
pub const PREAMBLE: &str = concat!(
    include_str!("device/scalar.cuh"),
    include_str!("device/total.cuh"),
    include_str!("device/block.cuh"),
    include_str!("device/reduce.cuh"),
    include_str!("device/row.cuh"),
    include_str!("device/softmax.cuh"),
    include_str!("device/loss.cuh"),
    include_str!("device/norm.cuh"),
    include_str!("device/batch_norm.cuh"),
    include_str!("device/index.cuh"),
    include_str!("device/random.cuh"),
    include_str!("device/pool.cuh"),
    include_str!("device/product.cuh"),
);

/// One `__global__` function, to be compiled after [`PREAMBLE`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Kernel {
    /// Its name: its purpose, and a hash of its text.
    pub name: String,
    /// CUDA C++ text of the whole function.
    pub source: String,
}

/// One parameter of a launch, in the order of the kernel's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arg {
    /// Address of an operand, by index.
    Operand(usize),
    /// Address of a result, by index.
    Result(usize),
    /// Address of this byte of the workspace.
    Workspace(u64),
    /// Address of the eight bytes that take the report of this check.
    Report(usize),
    /// A 64-bit integer.
    I64(i64),
}

/// One launch of a kernel. Launches of an op run one after another.
#[derive(Clone, PartialEq, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, along x alone.
    pub block: u32,
    /// Its parameters.
    pub args: Vec<Arg>,
}

/// A check of index values ahead of an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexCheck {
    /// The operand that holds the values, by index.
    pub operand: usize,
    /// Legal values.
    pub legal: Range<i64>,
}

/// An op as launches.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Lowering {
    /// In the order to run them; none where there is nothing to write.
    pub launches: Vec<Launch>,
    /// Scratch bytes that the launches share, aligned like operands.
    pub workspace: u64,
    /// Checks of the first launches. A report is [`NO_REPORT`](crate::NO_REPORT) before them.
    pub checks: Vec<IndexCheck>,
}

impl Lowering {
    /// Without workspace.
    pub(crate) fn of(launches: impl IntoIterator<Item = Launch>) -> Lowering {
        Lowering { launches: launches.into_iter().collect(), ..Lowering::default() }
    }

    pub(crate) fn with_workspace(mut self, bytes: u64) -> Lowering {
        self.workspace = if self.launches.is_empty() { 0 } else { bytes };
        self
    }
}

/// The text of one translation unit with these kernels, each once, in order of names.
pub fn program<'a>(kernels: impl IntoIterator<Item = &'a Kernel>) -> String {
    let distinct: BTreeMap<&str, &str> = kernels.into_iter().map(|k| (&*k.name, &*k.source)).collect();
    let mut text = String::from(PREAMBLE);
    distinct.values().for_each(|source| text.push_str(source));
    text
}

/// Names of the kernels of a [`program`], in its order.
pub fn kernel_names(program: &str) -> impl Iterator<Item = &str> {
    let heads = program.lines().filter_map(|line| line.strip_prefix(HEAD));
    heads.filter_map(|head| Some(head.split_once(") ")?.1.split_once('(')?.0))
}

/// The name of an element type in kernels.
pub(crate) fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "b8",
        other => other.name(),
    }
}

/// The unsigned integer as wide as an element.
pub(crate) fn raw(dtype: DType) -> &'static str {
    match dtype.bytes() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// A float literal, bit for bit.
pub(crate) fn float(value: f32) -> String {
    format!("of_bits(0x{:08x}u)", value.to_bits())
}

/// An integer literal.
pub(crate) fn int(value: i64) -> String {
    if value == i64::MIN { "LOWEST_I64".into() } else { format!("{value}LL") }
}

/// Begin of a kernel, before its bounds and its name.
const HEAD: &str = "extern \"C\" __global__ void ";

/// Most threads of a block; most blocks have as many.
pub(crate) const BLOCK: u32 = 256;
/// Blocks of [`BLOCK`] threads that a multiprocessor has room for at least: a thread has up to 80 registers.
const RESIDENT: u32 = 3;
/// Most blocks of a launch whose threads take one element after another.
const GRID: u64 = 4096;

/// Blocks along one axis for that many units, each of which takes a block.
pub(crate) fn blocks(units: u64) -> u32 {
    units.clamp(1, 1 << 30) as u32
}

/// A kernel under construction, with the arguments of its launch.
#[derive(Default)]
pub(crate) struct Entry {
    params: String,
    args: Vec<Arg>,
}

impl Entry {
    pub(crate) fn new() -> Entry {
        Entry::default()
    }

    fn param(mut self, text: String, arg: Arg) -> Entry {
        if !self.args.is_empty() {
            self.params.push_str(", ");
        }
        self.params.push_str(&text);
        self.args.push(arg);
        self
    }

    /// Operand `i` as `const T* name`.
    pub(crate) fn operand(self, i: usize, ctype: &str, name: &str) -> Entry {
        self.param(format!("const {ctype}* {name}"), Arg::Operand(i))
    }

    /// Result `j` as `T* name`.
    pub(crate) fn result(self, j: usize, ctype: &str, name: &str) -> Entry {
        self.param(format!("{ctype}* {name}"), Arg::Result(j))
    }

    /// The workspace from byte `at` on as `T* name`.
    pub(crate) fn workspace(self, at: u64, ctype: &str, name: &str) -> Entry {
        self.param(format!("{ctype}* {name}"), Arg::Workspace(at))
    }

    /// A buffer that is a result or a place in the workspace.
    pub(crate) fn buffer(self, arg: Arg, ctype: &str, name: &str) -> Entry {
        self.param(format!("{ctype}* {name}"), arg)
    }

    /// The place of a check's report as `u64* name`.
    pub(crate) fn report(self, check: usize, name: &str) -> Entry {
        self.param(format!("u64* {name}"), Arg::Report(check))
    }

    /// An integer parameter.
    pub(crate) fn int(self, name: &str, value: impl Into<i128>) -> Entry {
        // Extents are below 2^48 and strides no larger than a tensor, so that nothing is cut.
        let value = value.into().clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        self.param(format!("i64 {name}"), Arg::I64(value))
    }

    /// The launch of a kernel with this body.
    pub(crate) fn launch(self, stem: &str, grid: [u32; 3], block: u32, body: &str) -> Launch {
        let mut text = format!("({}) {{\n", self.params);
        for line in body.trim().lines() {
            let _ = writeln!(text, "  {line}");
        }
        text.push_str("}\n");
        let hash = blake3::hash(text.as_bytes()).to_hex();
        let name = format!("{stem}_{}", &hash[..16]);
        let bounds = format!("__launch_bounds__({BLOCK}, {RESIDENT})");
        let source = format!("{HEAD}{bounds} {name}{text}");
        Launch { kernel: Kernel { name, source }, grid, block, args: self.args }
    }

    /// The launch of a kernel that does `body` for every `i` below `n`; none where `n` is zero.
    pub(crate) fn each(self, stem: &str, n: u64, body: &str) -> Option<Launch> {
        self.each_after(stem, n, "", body)
    }

    /// [`Entry::each`], with statements that every thread runs before its first `i`.
    pub(crate) fn each_after(self, stem: &str, n: u64, before: &str, body: &str) -> Option<Launch> {
        self.loop_of("n", stem, [n, n], before, body)
    }

    /// [`Entry::each_after`] for every `i` below a quarter of `n`, where `4 * i` is an index, too.
    pub(crate) fn each_four(self, stem: &str, n: u64, before: &str, body: &str) -> Option<Launch> {
        self.loop_of("fours", stem, [n / 4, n], before, body)
    }

    /// [`Entry::each`] for every `i` below `n` over `pack`, where `pack * i` is an index, too.
    pub(crate) fn each_pack(self, stem: &str, n: u64, pack: u64, body: &str) -> Option<Launch> {
        self.loop_of("packs", stem, [n / pack, n], "", body)
    }

    /// [`Entry::each`] with another name for the count.
    pub(crate) fn each_of(self, count: &str, stem: &str, n: u64, body: &str) -> Option<Launch> {
        self.loop_of(count, stem, [n, n], "", body)
    }

    fn loop_of(
        self,
        count: &str,
        stem: &str,
        [n, largest]: [u64; 2],
        before: &str,
        body: &str,
    ) -> Option<Launch> {
        if n == 0 {
            return None;
        }
        let grid = n.div_ceil(BLOCK.into()).min(GRID);
        let text = format!(
            "{before}\nfor (idx i = (idx)thread_in_grid(); i < (idx){count}; \
             i += (idx)threads_in_grid()) {{\n{body}\n}}"
        );
        // 32-bit arithmetic on indices is several times as fast.
        let idx = if largest < 1 << 31 { "u32" } else { "u64" };
        let text = format!("typedef {idx} idx;\n{}", text.trim());
        Some(self.int(count, n).launch(stem, [blocks(grid), 1, 1], BLOCK, &text))
    }
}

#[cfg(test)]
mod tests {
    /// Every kernel of a program is found by its name.
    #[test]
    fn kernels_are_found_in_a_program() {
        let kernel = |op: &str, ty: &str, n: usize| {
            let (op, ty) = (memc_ir::parse_op(op, "").unwrap(), memc_ir::parse_type(ty).unwrap());
            crate::lower(&op, &vec![ty; n]).unwrap().launches[0].kernel.clone()
        };
        let all = [kernel("neg", "f32[7]", 1), kernel("matmul", "f32[8,8]", 2), kernel("add", "f32[9]", 2)];
        let text = super::program(&all);
        let mut names = all.map(|kernel| kernel.name.clone());
        names.sort();
        assert_eq!(super::kernel_names(&text).collect::<Vec<_>>(), names);
    }
}
