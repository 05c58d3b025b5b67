//! Rates of a device and its link apart from any plan: arithmetic, memory, copies, fixed times.
//!
//! Everything is measured in captured graphs between marks. Kernels and copies grow until one takes long
//! enough, or memory ends, so that slow devices are measured in as little time as fast ones.

use memc_cuda::{Arg, Lowering};
use memc_gpu::{Clock, Function, GpuError, Graphs, Region, Sizes, Space, Stream, Word};
use memc_ir::{OpKind, TensorType, parse_op, parse_type};

use crate::profile::machine::{Machine, median, per_second};
use crate::{Error, Stages, memory};

/// Rows and columns of products, and elements of an element-wise kernel, from small to large.
const SIDES: [u64; 6] = [128, 256, 512, 1024, 2048, 4096];
const LENGTHS: [u64; 6] = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];
/// A kernel that takes so long is large enough.
const LONG_NS: u64 = 2_000_000;
/// Most bytes of a copy that tells the link's throughput, and rounds of copies both ways.
const COPY: usize = 64 << 20;
const ROUNDS: usize = 4;
/// Bytes of a copy that tells its fixed time.
const SMALL: usize = 64;
/// Most bytes of the device that are taken.
const MOST: u64 = 1 << 30;
/// Kernels in a row that tell the fixed time of one, and that copies run beside.
const ROW: usize = 100;
const BESIDE: usize = 4;
/// Times that medians are of.
const SAMPLES: usize = 5;
/// Byte that memory is filled with, which gives small numbers.
const FILL: u8 = 0x3c;
const ALIGN: usize = 256;

/// A kernel to measure.
struct Probe {
    /// Operations, or elements.
    size: u64,
    calls: Vec<(Function, [u32; 3], u32, Vec<Word>)>,
}

/// An op at fixed types, with the bytes that its operands and results take.
struct Shape {
    size: u64,
    lowering: Lowering,
    operands: Vec<usize>,
    results: Vec<usize>,
}

fn shape(op: &str, operand: &str, operands: usize, size: u64) -> Result<Shape, Error> {
    let failed = |what: &dyn std::fmt::Display| Error::Internal(format!("measuring {op}: {what}"));
    let op: OpKind = parse_op(op, "").map_err(|e| failed(&e))?;
    let operand: TensorType = parse_type(operand).map_err(|e| failed(&e))?;
    let operands = vec![operand; operands];
    let results = op.infer(&operands.iter().collect::<Vec<_>>()).map_err(|e| failed(&e))?;
    let lowering = memc_cuda::lower(&op, &operands).map_err(|error| failed(&error))?;
    let bytes = |types: &[TensorType]| {
        types.iter().map(|ty| usize::try_from(ty.bytes()).unwrap_or(usize::MAX)).collect::<Vec<_>>()
    };
    Ok(Shape { size, lowering, operands: bytes(&operands), results: bytes(&results) })
}

impl Shape {
    /// Bytes of everything, each part aligned.
    fn bytes(&self) -> usize {
        let parts = self.operands.iter().chain(&self.results);
        let workspace = usize::try_from(self.lowering.workspace).unwrap_or(usize::MAX);
        parts.fold(workspace, |sum, part| sum.saturating_add(part.next_multiple_of(ALIGN)))
    }

    /// The kernel with its parts laid out from a place on.
    fn probe<D: Graphs + Clock>(&self, driver: &mut D, from: usize) -> Result<Probe, Error> {
        let mut at = from;
        let mut place = |len: &usize| {
            let start = at;
            at += len.next_multiple_of(ALIGN);
            start
        };
        let operands: Vec<usize> = self.operands.iter().map(&mut place).collect();
        let results: Vec<usize> = self.results.iter().map(&mut place).collect();
        let workspace = at;
        let word = |arg: &Arg| match *arg {
            Arg::Operand(i) => operands.get(i).copied().map(Word::Address),
            Arg::Result(j) => results.get(j).copied().map(Word::Address),
            Arg::Workspace(byte) => usize::try_from(byte).ok().map(|byte| Word::Address(workspace + byte)),
            Arg::I64(value) => Some(Word::Int(value)),
            Arg::Report(_) => None,
        };
        let mut calls = Vec::new();
        for launch in &self.lowering.launches {
            let words: Option<Vec<Word>> = launch.args.iter().map(word).collect();
            let words = words.ok_or_else(|| Error::Internal("a kernel has too many operands".to_owned()))?;
            calls.push((driver.function(&launch.kernel.name)?, launch.grid, launch.block, words));
        }
        Ok(Probe { size: self.size, calls })
    }
}

/// A device with both arenas and the kernels to measure.
struct Bench<D> {
    driver: D,
    /// Bytes of the largest copy.
    copy: usize,
}

/// Measures a device; `memory` and `reserve` bytes are the caller's to fill in.
pub(crate) fn machine<D: Graphs + Clock>(
    mut driver: D,
    is_granted: bool,
    stages: &Stages,
) -> Result<Machine, Error> {
    stages.enter("measuring the device: preparing kernels");
    let facts = driver.facts()?;
    let most = usize::try_from((facts.free_bytes / 2).min(MOST)).unwrap_or(usize::MAX);
    let copy = COPY.min(most / 4).next_multiple_of(ALIGN);
    let room = most.saturating_sub(2 * copy);
    let products = SIDES.map(|n| shape("matmul", &format!("f32[{n},{n}]"), 2, 2 * n * n * n));
    let streams = LENGTHS.map(|n| shape("neg", &format!("f32[{n}]"), 1, 8 * n));
    let fits = |shapes: Vec<Shape>| -> Vec<Shape> {
        let mut first = true;
        let small = |shape: &Shape| std::mem::take(&mut first) || shape.bytes() <= room;
        shapes.into_iter().filter(small).collect()
    };
    let products = fits(products.into_iter().collect::<Result<_, _>>()?);
    let streams = fits(streams.into_iter().collect::<Result<_, _>>()?);
    let tiny = shape("neg", "f32[1]", 1, 1)?;
    let all = || products.iter().chain(&streams).chain([&tiny]);
    let area = all().map(Shape::bytes).max().unwrap_or(0);
    memory::check(0, 2 * copy, is_granted)?;
    driver.reserve(Sizes { device: 2 * copy + area, host: 2 * copy, reports: 0 }, 1, FILL)?;
    driver
        .build(&memc_cuda::program(all().flat_map(|s| &s.lowering.launches).map(|launch| &launch.kernel)))?;
    driver.reserve_marks(4)?;
    let mut probes = |shapes: &[Shape]| {
        shapes.iter().map(|shape| shape.probe(&mut driver, 2 * copy)).collect::<Result<Vec<_>, _>>()
    };
    let (products, streams, tiny) = (probes(&products)?, probes(&streams)?, probes(&[tiny])?);
    let mut bench = Bench { driver, copy };
    stages.enter("measuring the device: arithmetic and memory");
    let (product, _) = bench.grow(&products)?;
    let (stream, large) = bench.grow(&streams)?;
    let launch = match tiny.first() {
        Some(tiny) => bench.ns(|d| (0..ROW).try_for_each(|_| launch(d, tiny)))? / ROW as u64,
        None => 0,
    };
    stages.enter("measuring the device: copies");
    let d2h = bench.copy_ns(Stream::DeviceToHost, SMALL)?;
    let h2d = bench.copy_ns(Stream::HostToDevice, SMALL)?;
    let (latency, bytes) = (d2h.max(h2d), copy as u64);
    let down = bench.copy_ns(Stream::DeviceToHost, copy)?.saturating_sub(d2h);
    let up = bench.copy_ns(Stream::HostToDevice, copy)?.saturating_sub(h2d);
    let duplex = bench.duplex_ns()?;
    let slowdown = match streams.get(large) {
        Some(probe) => bench.beside(probe)?,
        None => 1.0,
    };
    Ok(Machine {
        flops_per_s: product,
        memory_bytes_per_s: stream,
        d2h_bytes_per_s: per_second(bytes, down),
        h2d_bytes_per_s: per_second(bytes, up),
        duplex_bytes_per_s: per_second(2 * ROUNDS as u64 * bytes, duplex),
        copy_latency_ns: latency,
        kernel_latency_ns: Some(launch),
        compute_slowdown: Some(slowdown),
        memory_bytes: Some(facts.total_bytes),
        reserve_bytes: 0,
    })
}

fn launch<D: Graphs + Clock>(driver: &mut D, probe: &Probe) -> Result<(), GpuError> {
    let mut calls = probe.calls.iter();
    calls.try_for_each(|(function, grid, block, words)| driver.launch(*function, *grid, *block, words))
}

impl<D: Graphs + Clock> Bench<D> {
    /// Median of the longest time from mark 0 to each of `to`, of commands that set these marks.
    fn marked(
        &mut self,
        to: &[usize],
        mut issue: impl FnMut(&mut D) -> Result<(), GpuError>,
    ) -> Result<u64, Error> {
        self.driver.begin_capture()?;
        let issued = issue(&mut self.driver);
        let graph = self.driver.end_capture();
        issued?;
        let graph = graph?;
        let mut times = Vec::with_capacity(SAMPLES);
        // The first warms up.
        for sample in 0..=SAMPLES {
            self.driver.replay(graph)?;
            self.driver.synchronize()?;
            let mut longest = 1;
            for mark in to {
                longest = self.driver.elapsed_ns(0, *mark)?.max(longest);
            }
            if sample > 0 {
                times.push(longest.unsigned_abs());
            }
        }
        Ok(median(&mut times))
    }

    /// Time of commands on the compute queue.
    fn ns(&mut self, mut issue: impl FnMut(&mut D) -> Result<(), GpuError>) -> Result<u64, Error> {
        self.marked(&[1], |driver| {
            driver.mark(Stream::Compute, 0)?;
            issue(driver)?;
            driver.mark(Stream::Compute, 1)
        })
    }

    /// The throughput of the first kernel that takes long, or of the last one, and its index.
    fn grow(&mut self, probes: &[Probe]) -> Result<(u64, usize), Error> {
        let mut best = (0, 0);
        for (index, probe) in probes.iter().enumerate() {
            let ns = self.ns(|driver| launch(driver, probe))?;
            best = (per_second(probe.size, ns), index);
            if ns >= LONG_NS {
                break;
            }
        }
        Ok(best)
    }

    fn copy_ns(&mut self, queue: Stream, bytes: usize) -> Result<u64, Error> {
        let copy = self.copy;
        self.marked(&[1], |driver| {
            driver.mark(queue, 0)?;
            one(driver, queue, copy, bytes)?;
            driver.mark(queue, 1)
        })
    }

    /// Time of copies in both directions at once.
    fn duplex_ns(&mut self) -> Result<u64, Error> {
        let copy = self.copy;
        self.marked(&[1, 2], |driver| {
            driver.mark(Stream::Compute, 0)?;
            both(driver, copy)?;
            driver.mark(Stream::DeviceToHost, 1)?;
            driver.mark(Stream::HostToDevice, 2)
        })
    }

    /// Slowdown of kernels beside copies in both directions.
    fn beside(&mut self, probe: &Probe) -> Result<f64, Error> {
        let copy = self.copy;
        let row = |driver: &mut D| (0..BESIDE).try_for_each(|_| launch(driver, probe));
        let alone = self.ns(row)?;
        let together = self.ns(|driver| {
            both(driver, copy)?;
            row(driver)
        })?;
        Ok((together as f64 / alone.max(1) as f64).max(1.0))
    }
}

/// A copy of so many bytes, at the place of the queue's copies of `copy` bytes.
fn one<D: Graphs>(driver: &mut D, queue: Stream, copy: usize, bytes: usize) -> Result<(), GpuError> {
    let start = if queue == Stream::DeviceToHost { 0 } else { copy };
    let [host, device] = [Space::Host, Space::Dev].map(|arena| Region { arena, start, len: bytes });
    let (from, to) = if queue == Stream::DeviceToHost { (device, host) } else { (host, device) };
    driver.copy(queue, from, to)
}

/// Rounds of copies in both directions, from where the compute queue is.
fn both<D: Graphs>(driver: &mut D, copy: usize) -> Result<(), GpuError> {
    driver.record(Stream::Compute, 0)?;
    let queues = [Stream::DeviceToHost, Stream::HostToDevice];
    queues.into_iter().try_for_each(|queue| driver.wait(queue, 0))?;
    (0..ROUNDS).flat_map(|_| queues).try_for_each(|queue| one(driver, queue, copy, copy))
}
