//! Notes on a device's memory where it is not as planned, given once, before the first step.

use memc_gpu::{Driver, Facts, GpuError, Region, Space, Stream};
use memc_ir::Bytes;
use memc_plan::Section;

use crate::clock::{elapsed_ns, now};
use crate::program::Action;
use crate::{Error, Program, memory as host_memory};

/// Most bytes of a copy that tells the link's throughput.
const COPY: usize = 16 << 20;
/// Granularity of the drivers' allocations, in bytes.
const GRAIN: u64 = 2 << 20;
/// Bytes of the device that another plan may take for graphs and kernels beyond the measured one: four times
/// as many as plans of ResNet-50 and BERT-base took on an H100.
const OTHER_PLANS: u64 = 32 << 20;

/// Note on the cost of copies where the host arena could not be page-locked. The arenas must be unused.
pub(super) fn pageable(driver: &mut impl Driver, program: &Program) -> Result<String, Error> {
    let len = COPY.min(program.dev_bytes).min(program.host_bytes);
    let [device, host] = [Space::Dev, Space::Host].map(|arena| Region { arena, start: 0, len });
    let mut rate = |queue, from, to| -> Result<f64, Error> {
        // The first copy warms up.
        driver.copy(queue, from, to)?;
        driver.synchronize()?;
        let start = now();
        driver.copy(queue, from, to)?;
        driver.synchronize()?;
        Ok(len as f64 / elapsed_ns(start).max(1) as f64)
    };
    let (down, up) = (rate(Stream::DeviceToHost, device, host)?, rate(Stream::HostToDevice, host, device)?);
    let copied = |to: memc_plan::Space| -> u64 {
        let bytes = program.section(Section::Body).iter().map(|command| match &command.action {
            Action::Copy { dst, .. } if dst.space == to => dst.len as u64,
            _ => 0,
        });
        bytes.sum()
    };
    let (out, back) = (copied(memc_plan::Space::Host), copied(memc_plan::Space::Dev));
    let ms = |bytes: u64, rate: f64| if rate > 0.0 { bytes as f64 / rate / 1e6 } else { 0.0 };
    Ok(format!(
        "the host arena of {} could not be page-locked: copies reach {down:.1} GB/s to the host and {up:.1} \
         GB/s back, so that those of a step alone take {:.3} ms, and commands are issued one by one; {}",
        Bytes(program.host_bytes as u64),
        ms(out, down) + ms(back, up),
        host_memory::lock_remedy(),
    ))
}

/// Error text for refused arenas; for the device's, with all that the plan takes.
pub(super) fn refused(error: GpuError, program: &Program) -> Error {
    match &error {
        GpuError::Memory { what: "the device arena", .. } => Error::Memory(format!(
            "{error}; the plan is for {}, of which {} are set aside for the driver, libraries and code; free \
             the device's memory, or compile for a smaller --gpu-mem",
            Bytes(program.budget_bytes),
            Bytes(program.reserve_bytes),
        )),
        _ => error.into(),
    }
}

/// Bytes of the device that a program takes beside its arena of `arena` bytes, with the driver's context
/// where that is known; `before` are the bytes that were free once the context was there, and nothing else.
pub(super) fn taken(facts: &Facts, before: u64, arena: u64) -> u64 {
    let own = before.saturating_sub(facts.free_bytes).saturating_sub(arena);
    own.saturating_add(facts.context_bytes.unwrap_or(0))
}

/// Bytes of the device that plans cannot have: the context, the kernels, the graphs. Where the context's own
/// bytes are not known it is all that is neither free nor the arena, which counts other processes in.
pub(super) fn reserve(facts: &Facts, before: u64, arena: u64) -> u64 {
    let others = facts.total_bytes.saturating_sub(facts.free_bytes).saturating_sub(arena);
    facts.context_bytes.map_or(others, |_| taken(facts, before, arena).saturating_add(OTHER_PLANS))
}

/// Note after the first step where more is taken than the plan sets aside for it.
pub(super) fn loaded(facts: &Facts, program: &Program, before: u64, arena: u64) -> Option<String> {
    let taken = taken(facts, before, arena);
    let over = taken > program.reserve_bytes.saturating_add(GRAIN);
    let context = match facts.context_bytes {
        Some(bytes) => format!(", {} of them the driver's context", Bytes(bytes)),
        None => ", and the driver's context comes on top".to_owned(),
    };
    over.then(|| {
        format!(
            "what is loaded takes {} of the device beside the arena (kernels, libraries, graphs{context}): \
             more than the {} that the plan sets aside, so that the budget of {} is exceeded; compile with a \
             profile that `memrun profile` measures here, which knows what it takes",
            Bytes(taken),
            Bytes(program.reserve_bytes),
            Bytes(program.budget_bytes),
        )
    })
}
