//! Rates of a device and its link apart from any plan: arithmetic, memory, copies, fixed times.
//!
//! Everything is measured in captured graphs between marks. Kernels and copies grow until one takes long
//! enough, or memory ends, so that slow devices are measured in as little time as fast ones.

use std::sync::{Arc, Mutex, PoisonError};

use memc_gpu::{Clock, GpuError, Graphs, HostCall, HostWork, Region, Sizes, Space, Stream};

use super::probe::{Probe, Shape, shape};
use super::{at_host, units};
use crate::clock::{elapsed_ns, now};
use crate::profile::machine::{Machine, median, per_second, update, update_bytes};
use crate::{Error, Stages, memory};

/// Rows and columns of products, and elements of an element-wise kernel, from small to large.
const SIDES: [u64; 7] = [128, 256, 512, 1024, 2048, 4096, 8192];
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
/// Elements of an update on the host, and how many updates take turns: more memory than caches hold.
const UPDATE: u64 = 2 << 20;
const UPDATES: usize = 8;
/// Runs of each update, and of one of a single element.
const TURNS: usize = 3;
const SINGLE: usize = 64;
/// Most times that copies in both directions are issued beside them.
const MOST_ROUNDS: u64 = 200;
/// Times that medians are of.
const SAMPLES: usize = 5;
/// Byte that memory is filled with at first.
const FILL: u8 = 0x3c;
const ALIGN: usize = 256;
/// Bytes of numbers that are made, and repeated.
const BLOCK: usize = 4 << 20;

/// A device with both arenas and the kernels to measure.
struct Bench<D> {
    driver: D,
    /// Bytes of the largest copy.
    copy: usize,
    /// Time in ns between two marks with nothing between.
    empty: u64,
}

/// Products of one type, from small to large, that fit into so many bytes. Of a type without a generated
/// kernel that matters only those that a library computes.
fn products<D: Graphs + Clock>(driver: &mut D, dtype: &str, room: usize) -> Result<Vec<Shape>, Error> {
    let mut shapes = Vec::new();
    for n in SIDES {
        let mut shape = shape("matmul", &format!("{dtype}[{n},{n}]"), 2, 2 * n * n * n)?;
        let is_taken = shape.ask(driver)?;
        let is_small = shapes.is_empty() || shape.bytes() <= room;
        if is_small && (is_taken || dtype == "f32") {
            shapes.push(shape);
        }
    }
    Ok(shapes)
}

/// Conditions of a measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conditions {
    /// The caller grants the memory, whatever the system says is available.
    pub(crate) host_is_granted: bool,
    /// Whether libraries may round `f32` to TF32.
    pub(crate) is_tf32: bool,
    /// Time under load in ns.
    pub(crate) warm_ns: u64,
}

/// Measures a device; `memory` and `reserve` bytes are the caller's to fill in.
pub(crate) fn machine<D: Graphs + Clock>(
    mut driver: D,
    conditions: Conditions,
    stages: &Stages,
) -> Result<Machine, Error> {
    stages.enter("measuring the device: preparing kernels");
    let facts = driver.facts()?;
    let most = usize::try_from((facts.free_bytes / 2).min(MOST)).unwrap_or(usize::MAX);
    let copy = COPY.min(most / 4).next_multiple_of(ALIGN);
    let room = most.saturating_sub(2 * copy);
    let mut kinds = Vec::new();
    for dtype in ["f32", "f16", "bf16"] {
        kinds.push(products(&mut driver, dtype, room)?);
    }
    let streams = LENGTHS.map(|n| shape("neg", &format!("f32[{n}]"), 1, 8 * n));
    let mut streams = streams.into_iter().collect::<Result<Vec<_>, _>>()?;
    let fit = streams.iter().take_while(|shape| shape.bytes() <= room).count();
    streams.truncate(fit.max(1));
    let tiny = shape("neg", "f32[1]", 1, 1)?;
    let all = || kinds.iter().flatten().chain(&streams).chain([&tiny]);
    let area = all().map(Shape::bytes).max().unwrap_or(0);
    memory::check(0, 2 * copy, conditions.host_is_granted)?;
    driver.reserve(Sizes { device: 2 * copy + area, host: 2 * copy, reports: 0 }, 1, FILL)?;
    driver.build(&units::texts(all().flat_map(|s| &s.lowering.launches).map(|launch| &launch.kernel)))?;
    driver.reserve_marks(4)?;
    scatter(&mut driver, 2 * copy, area)?;
    let mut probes = |shapes: &[Shape]| {
        shapes.iter().map(|shape| shape.probe(&mut driver, 2 * copy)).collect::<Result<Vec<_>, _>>()
    };
    let (streams, tiny) = (probes(&streams)?, probes(&[tiny])?);
    let kinds = kinds.iter().map(|shapes| probes(shapes)).collect::<Result<Vec<_>, _>>()?;
    let mut bench = Bench { driver, copy, empty: 0 };
    bench.empty = bench.ns(|_| Ok(()))?;
    stages.enter("measuring the device: under load first");
    let first = kinds.first().map_or(&[][..], Vec::as_slice);
    let (_, long) = bench.grow(first)?;
    bench.load(first.get(long), conditions.warm_ns)?;
    stages.enter("measuring the device: arithmetic and memory");
    let mut rates = Vec::new();
    for products in &kinds {
        rates.push(bench.grow(products)?.0);
    }
    let product = rates.first().copied().unwrap_or(0);
    // Of a type that is no faster there is nothing to tell.
    let faster = |kind: usize| rates.get(kind).copied().filter(|rate| *rate > product);
    let (f16, bf16) = (faster(1), faster(2));
    let (stream, large) = bench.grow(&streams)?;
    let launch = match tiny.first() {
        Some(tiny) => bench.ns(|d| (0..ROW).try_for_each(|_| tiny.launch(d)))? / ROW as u64,
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
    stages.enter("measuring the host: updates");
    let (update_ns, host_latency) = bench.updates(duplex)?;
    Ok(Machine {
        flops_per_s: product,
        f16_flops_per_s: f16,
        bf16_flops_per_s: bf16,
        tf32_flops_per_s: conditions.is_tf32.then_some(product),
        memory_bytes_per_s: stream,
        d2h_bytes_per_s: per_second(bytes, down),
        h2d_bytes_per_s: per_second(bytes, up),
        duplex_bytes_per_s: per_second(2 * ROUNDS as u64 * bytes, duplex),
        host_bytes_per_s: Some(per_second(update_bytes(UPDATE), update_ns)),
        host_latency_ns: Some(host_latency),
        copy_latency_ns: latency,
        kernel_latency_ns: Some(launch),
        compute_slowdown: Some(slowdown),
        memory_bytes: Some(facts.total_bytes),
        reserve_bytes: 0,
    })
}

/// Fills a part of the device's arena with numbers that differ in sign and size, of any of the measured
/// types. Equal numbers would take less power, and so give higher clocks, than those of a training step.
fn scatter<D: Graphs + Clock>(driver: &mut D, from: usize, len: usize) -> Result<(), Error> {
    let mut seed = 1u64;
    let number = |_| {
        // Knuth's MMIX generator; its upper bits are the good ones.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (seed >> 48) as u16;
        // In f16 from 1 to 1.25, in bf16 and f32 about a hundredth.
        (bits & 0x80ff) | 0x3c00
    };
    let block: Vec<u8> = (0..BLOCK / 2).map(number).flat_map(u16::to_le_bytes).collect();
    for start in (0..len).step_by(BLOCK) {
        let bytes = block.get(..BLOCK.min(len - start)).unwrap_or_default();
        driver.upload(from + start, bytes)?;
    }
    Ok(())
}

impl<D: Graphs + Clock> Bench<D> {
    /// Median of the longest time from mark 0 to each of `to`, of commands that set these marks.
    fn marked(
        &mut self,
        to: &[usize],
        mut issue: impl FnMut(&mut D) -> Result<(), GpuError>,
    ) -> Result<u64, Error> {
        // The first call of a library loads code, which a capture may not.
        issue(&mut self.driver)?;
        self.driver.synchronize()?;
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
        let marked = self.marked(&[1], |driver| {
            driver.mark(Stream::Compute, 0)?;
            issue(driver)?;
            driver.mark(Stream::Compute, 1)
        })?;
        Ok(marked.saturating_sub(self.empty).max(1))
    }

    /// Keeps the device busy for so long, so that its clocks are those of a long run.
    fn load(&mut self, probe: Option<&Probe>, ns: u64) -> Result<(), Error> {
        let Some(probe) = probe.filter(|_| ns > 0) else { return Ok(()) };
        self.driver.begin_capture()?;
        let issued = (0..BESIDE).try_for_each(|_| probe.launch(&mut self.driver));
        let graph = self.driver.end_capture();
        issued?;
        let (graph, start) = (graph?, now());
        while elapsed_ns(start) < ns {
            self.driver.replay(graph)?;
            self.driver.synchronize()?;
        }
        Ok(())
    }

    /// The throughput of the first kernel that takes long, or of the last one, and its index.
    fn grow(&mut self, probes: &[Probe]) -> Result<(u64, usize), Error> {
        let mut best = (0, 0);
        for (index, probe) in probes.iter().enumerate() {
            let ns = self.ns(|driver| probe.launch(driver))?;
            best = (per_second(probe.size, ns), index);
            if ns >= LONG_NS {
                break;
            }
        }
        Ok(best)
    }

    fn copy_ns(&mut self, queue: Stream, bytes: usize) -> Result<u64, Error> {
        let copy = self.copy;
        let marked = self.marked(&[1], |driver| {
            driver.mark(queue, 0)?;
            one(driver, queue, copy, bytes)?;
            driver.mark(queue, 1)
        })?;
        Ok(marked.saturating_sub(self.empty).max(1))
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

    /// Time in ns of an update on the host beside copies in both directions, and from one of a single element
    /// to the next. `duplex` is the time in ns of [`both`].
    fn updates(&mut self, duplex: u64) -> Result<(u64, u64), Error> {
        let pool = Arc::new(at_host::pool()?);
        let times: Arc<Mutex<Vec<Result<u64, Error>>>> = Arc::default();
        let mut take = |elements| -> Result<HostCall, Error> {
            let kernel = Mutex::new(update(elements)?);
            let (pool, times) = (pool.clone(), times.clone());
            Ok(self.driver.take_work(HostWork(Arc::new(move || {
                let ran = pool.install(|| kernel.lock().unwrap_or_else(PoisonError::into_inner).run());
                times.lock().unwrap_or_else(PoisonError::into_inner).push(ran);
            }))))
        };
        let single = take(1)?;
        let updates = (0..UPDATES).map(|_| take(UPDATE)).collect::<Result<Vec<_>, _>>()?;
        let run = |driver: &mut D, calls: &[HostCall], turns| -> Result<Vec<u64>, Error> {
            for call in (0..turns).flat_map(|_| calls) {
                driver.call_host(Stream::HostCompute, *call)?;
            }
            driver.synchronize()?;
            std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect()
        };
        run(&mut self.driver, &[single], SINGLE)?;
        let start = now();
        run(&mut self.driver, &[single], SINGLE)?;
        let latency = elapsed_ns(start) / SINGLE as u64;
        // Copies that last as long as the updates, which they make slower.
        let alone: u64 = run(&mut self.driver, &updates, TURNS)?.iter().sum();
        for _ in 0..(2 * alone / duplex.max(1)).clamp(1, MOST_ROUNDS) {
            both(&mut self.driver, self.copy)?;
        }
        let mut ns = run(&mut self.driver, &updates, TURNS)?;
        Ok((median(&mut ns), latency))
    }

    /// Slowdown of kernels beside copies in both directions.
    fn beside(&mut self, probe: &Probe) -> Result<f64, Error> {
        let copy = self.copy;
        let row = |driver: &mut D| (0..BESIDE).try_for_each(|_| probe.launch(driver));
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
