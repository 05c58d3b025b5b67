//! Rates of a machine apart from any plan, and their measurement on the CPU: arithmetic, memory, copies,
//! handing over.

use std::{sync::mpsc, thread};

use memc_ir::{OpKind, TensorType, parse_op, parse_type};
use memc_kernels::{ALIGN, Call, Operand, execute};
use rayon::ThreadPool;

use crate::clock::{elapsed_ns, now};
use crate::{Error, Stages};

/// Rows and columns of the matrix product that tells arithmetic throughput.
const SIDE: u64 = 768;
/// Elements that tell memory throughput: more than caches hold.
const LARGE: u64 = 16 << 20;
/// Bytes of a copy that tells the link's throughput.
const COPY: usize = 64 << 20;
/// Times that medians are of.
const SAMPLES: usize = 9;
/// Byte of which `f32` makes a number near 0.01: products are no subnormal numbers, which take longer.
const FILL: u8 = 0x3c;
/// Rounds of handing over.
const ROUNDS: usize = 2_000;

/// Rates of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// FLOP per second of a large matrix product of `f32`, as the options let it be computed.
    pub flops_per_s: u64,
    /// The same of `f16`, where that is faster.
    pub f16_flops_per_s: Option<u64>,
    /// The same of `bf16`, where that is faster.
    pub bf16_flops_per_s: Option<u64>,
    /// The same of `f32` that is rounded to TF32, where the options allow that.
    pub tf32_flops_per_s: Option<u64>,
    /// Bytes per second read and written by a kernel that does little else.
    pub memory_bytes_per_s: u64,
    /// Bytes per second of one copy from the device to the host.
    pub d2h_bytes_per_s: u64,
    /// Bytes per second of one copy from the host to the device.
    pub h2d_bytes_per_s: u64,
    /// Bytes per second of two copies together.
    pub duplex_bytes_per_s: u64,
    /// Bytes per second that an update of AdamW on the host reads and writes, where the device is not the
    /// host.
    pub host_bytes_per_s: Option<u64>,
    /// Time in ns from one kernel on the host to the next, beyond what the kernels take.
    pub host_latency_ns: Option<u64>,
    /// Fixed time of a copy in ns.
    pub copy_latency_ns: u64,
    /// Fixed time of a kernel in ns, where that was measured.
    pub kernel_latency_ns: Option<u64>,
    /// Slowdown of kernels beside copies in both directions, where that was measured.
    pub compute_slowdown: Option<f64>,
    /// Bytes of the device's memory, where it has its own.
    pub memory_bytes: Option<u64>,
    /// Part of them that no plan can have.
    pub reserve_bytes: u64,
}

impl Machine {
    /// Measures, with kernels on this pool.
    pub(super) fn measure(pool: &ThreadPool, stages: &Stages) -> Result<Machine, Error> {
        stages.enter("measuring the machine: arithmetic and memory");
        let square = format!("f32[{SIDE},{SIDE}]");
        let product = pool.install(|| kernel_ns(("matmul", ""), &[&square, &square]))?;
        let stream = pool.install(|| kernel_ns(("neg", ""), &[&format!("f32[{LARGE}]")]))?;
        stages.enter("measuring the machine: copies");
        let copy = copies(1);
        Ok(Machine {
            flops_per_s: per_second(2 * SIDE * SIDE * SIDE, product),
            f16_flops_per_s: None,
            bf16_flops_per_s: None,
            tf32_flops_per_s: None,
            memory_bytes_per_s: per_second(2 * 4 * LARGE, stream),
            d2h_bytes_per_s: copy,
            h2d_bytes_per_s: copy,
            duplex_bytes_per_s: copies(2),
            host_bytes_per_s: None,
            host_latency_ns: None,
            copy_latency_ns: hand_over_ns(),
            kernel_latency_ns: None,
            compute_slowdown: None,
            memory_bytes: None,
            reserve_bytes: 0,
        })
    }
}

/// An update of AdamW in place, of a tensor of so many elements of `f32`.
pub(crate) fn update(elements: u64) -> Result<Kernel, Error> {
    let attrs =
        "{alpha = 0.9, beta = 0.999, epsilon = 1e-8, weight_decay = 0.01, bias_correction, decay_first}";
    let w: &str = &format!("f32[{elements}]");
    Kernel::new(("adamw", attrs), &[w, w, w, w, "f32[]", "i64[]"], &[(0, 0), (2, 1), (3, 2)])
}

/// Bytes that [`update`] reads and writes.
pub(crate) fn update_bytes(elements: u64) -> u64 {
    7 * 4 * elements
}

/// So many things in `ns` nanoseconds, per second.
pub(crate) fn per_second(things: u64, ns: u64) -> u64 {
    (things as f64 * 1e9 / ns.max(1) as f64) as u64
}

/// The middle of some numbers, the lower of two; 0 of none.
pub(crate) fn median(numbers: &mut [u64]) -> u64 {
    numbers.sort_unstable();
    numbers.get(numbers.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// Bytes whose part from `0` on is aligned for kernels.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    fn new(len: u64) -> Aligned {
        let len = usize::try_from(len).unwrap_or(0);
        let bytes = vec![FILL; len.saturating_add(ALIGN)];
        let from = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Aligned { bytes, from, len }
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(self.from..self.from + self.len).unwrap_or_default()
    }

    fn get_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.from..self.from + self.len).unwrap_or_default()
    }
}

/// An op with memory of its own.
pub(crate) struct Kernel {
    op: OpKind,
    operands: Vec<TensorType>,
    results: Vec<TensorType>,
    /// Of operands that take the bytes of a result, its index.
    in_place: Vec<(usize, usize)>,
    inputs: Vec<Aligned>,
    outputs: Vec<Aligned>,
    workspace: Aligned,
}

impl Kernel {
    /// An op with these attributes; results take the bytes of operands by pairs of indices.
    fn new(
        (op, attrs): (&str, &str),
        operands: &[&str],
        in_place: &[(usize, usize)],
    ) -> Result<Kernel, Error> {
        let failed = |what: &dyn std::fmt::Display| Error::Internal(format!("measuring {op}: {what}"));
        let op: OpKind = parse_op(op, attrs).map_err(|e| failed(&e))?;
        let operands = operands.iter().map(|t| parse_type(t)).collect::<Result<Vec<TensorType>, _>>();
        let operands = operands.map_err(|e| failed(&e))?;
        let results = op.infer(&operands.iter().collect::<Vec<_>>()).map_err(|e| failed(&e))?;
        let call = Call { op: &op, operand_types: &operands, result_types: &results };
        let workspace = Aligned::new(call.check().map_err(|e| failed(&e))?);
        let own = |i: usize| in_place.iter().all(|(operand, _)| *operand != i);
        let sizes = operands.iter().enumerate().map(|(i, t)| if own(i) { t.bytes() } else { 0 });
        let inputs = sizes.map(Aligned::new).collect();
        let outputs = results.iter().map(|t| Aligned::new(t.bytes())).collect();
        Ok(Kernel { op, operands, results, in_place: in_place.to_vec(), inputs, outputs, workspace })
    }

    /// Runs it, and says how long that took in ns.
    pub(crate) fn run(&mut self) -> Result<u64, Error> {
        let call = Call { op: &self.op, operand_types: &self.operands, result_types: &self.results };
        let result = |operand: usize| self.in_place.iter().find(|pair| pair.0 == operand).map(|pair| pair.1);
        let inputs = self.inputs.iter().enumerate();
        let inputs: Vec<Operand> =
            inputs.map(|(i, bytes)| result(i).map_or(Operand::Bytes(bytes.get()), Operand::Result)).collect();
        let mut outputs: Vec<&mut [u8]> = self.outputs.iter_mut().map(Aligned::get_mut).collect();
        let start = now();
        execute(&call, &inputs, &mut outputs, self.workspace.get_mut())
            .map_err(|e| Error::Internal(format!("measuring an op: {e}")))?;
        Ok(elapsed_ns(start))
    }
}

/// Median time of an op with these attributes.
fn kernel_ns(op: (&str, &str), operands: &[&str]) -> Result<u64, Error> {
    let mut kernel = Kernel::new(op, operands, &[])?;
    // The first run warms up.
    kernel.run()?;
    let mut times = (0..SAMPLES).map(|_| kernel.run()).collect::<Result<Vec<_>, _>>()?;
    Ok(median(&mut times))
}

/// Bytes per second of `n` copies side by side, together.
fn copies(n: usize) -> u64 {
    let mut buffers: Vec<(Vec<u8>, Vec<u8>)> = (0..n).map(|_| (vec![1; COPY], vec![2; COPY])).collect();
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let start = now();
        thread::scope(|scope| {
            for (from, to) in &mut buffers {
                scope.spawn(|| to.copy_from_slice(from));
            }
        });
        times.push(elapsed_ns(start));
    }
    per_second((COPY * n) as u64, median(&mut times))
}

/// Time in ns until another thread that sleeps has what this one gives it.
fn hand_over_ns() -> u64 {
    let (there, receives) = mpsc::channel::<()>();
    let (back, returns) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while receives.recv().is_ok() {
                if back.send(()).is_err() {
                    break;
                }
            }
        });
        let mut times: Vec<u64> = (0..ROUNDS)
            .map_while(|_| {
                let start = now();
                there.send(()).ok()?;
                returns.recv().ok()?;
                Some(elapsed_ns(start))
            })
            .collect();
        drop(there);
        median(&mut times) / 2
    })
}
