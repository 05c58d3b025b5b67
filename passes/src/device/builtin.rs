//! The built-in profiles.
//!
//! Peaks and memory throughputs are those of NVIDIA's documents, without sparsity: "NVIDIA Tesla V100 GPU
//! Architecture" (SXM2), "NVIDIA GeForce GTX 1080" white paper and product page (1080 Ti), "NVIDIA Turing GPU
//! Architecture" (2080 Ti reference clocks; its 16-bit products accumulate in `f32` at half rate), "NVIDIA
//! A100 Tensor Core GPU" data sheet (SXM), "NVIDIA H100 Tensor Core GPU" data sheet (SXM5), "NVIDIA H200
//! Tensor Core GPU" data sheet (SXM). `memory_bytes` is what the driver reports as the total.
//!
//! Links are the throughput that copies of page-locked memory reach, not that of the bus: 12 GB/s one way and
//! 20 GB/s both ways on PCIe 3 (SwapAdvisor, section 6.1), 24.8 GB/s one way (nvbandwidth) and 35 GB/s both
//! ways on PCIe 4 (NVIDIA developer forum, topic 352186), 55.6 GB/s one way on PCIe 5 ("NVbandwidth: Your
//! Essential Tool for Measuring GPU Interconnect and Memory Performance", NVIDIA); both ways on PCIe 5 is 1.5
//! times that, between the ratios of the other two.
//!
//! Fixed times: a kernel of a stream or captured graph begins about 2 us after the one before it on Pascal to
//! Ampere ("Getting Started with CUDA Graphs", NVIDIA, has 3.4 us for one whose work takes 2.9 us, and 3.8 us
//! without a graph). The time before the first byte of an asynchronous copy is assumed as 10 us, 8 us on
//! Hopper. The reserve is an estimate of the driver's context and loaded kernels, 0.5 GiB, and 1.5 GiB on
//! Hopper, where library images are larger and graphs take more; a measured profile has the real figure.

use std::borrow::Cow;

use super::{DeviceProfile, Kernels, Peaks};

const MIB: u64 = 1 << 20;

/// Figures in which the profiles of GPUs differ.
struct Gpu {
    name: &'static str,
    summary: &'static str,
    /// FLOP per ps (TFLOP/s): `f32`, `f16`, `bf16`, `tf32`; 0 where there are no units for it.
    teraflops: [f64; 4],
    processors: u32,
    /// GB/s.
    memory: f64,
    /// GB/s one way and both ways together.
    link: [f64; 2],
    memory_mib: u64,
    reserve_mib: u64,
    kernel_latency_ns: u64,
    copy_latency_ns: u64,
}

const fn units(teraflops: f64) -> Option<f64> {
    if teraflops > 0.0 { Some(teraflops * 1e12) } else { None }
}

const fn gpu(g: Gpu) -> DeviceProfile {
    let [f32, f16, bf16, tf32] = g.teraflops;
    DeviceProfile {
        name: Cow::Borrowed(g.name),
        summary: Cow::Borrowed(g.summary),
        peaks: Peaks { f32: f32 * 1e12, f16: units(f16), bf16: units(bf16), tf32: units(tf32) },
        processors: g.processors,
        memory_bytes_per_s: g.memory * 1e9,
        d2h_bytes_per_s: g.link[0] * 1e9,
        h2d_bytes_per_s: g.link[0] * 1e9,
        duplex_total_bytes_per_s: g.link[1] * 1e9,
        kernel_latency_ns: g.kernel_latency_ns,
        copy_latency_ns: g.copy_latency_ns,
        memory_bytes: Some(g.memory_mib * MIB),
        reserve_bytes: g.reserve_mib * MIB,
        compute_slowdown: None,
        kernels: Kernels::Gpu,
        measured: None,
    }
}

/// A profile whose kernels reach its peaks.
const fn plain(
    name: &'static str,
    summary: &'static str,
    [flops, memory, link]: [f64; 3],
    latency: u64,
) -> DeviceProfile {
    DeviceProfile {
        name: Cow::Borrowed(name),
        summary: Cow::Borrowed(summary),
        peaks: Peaks { f32: flops, f16: None, bf16: None, tf32: None },
        processors: 1,
        memory_bytes_per_s: memory,
        d2h_bytes_per_s: link,
        h2d_bytes_per_s: link,
        duplex_total_bytes_per_s: 2.0 * link,
        kernel_latency_ns: latency,
        copy_latency_ns: latency,
        memory_bytes: None,
        reserve_bytes: 0,
        compute_slowdown: None,
        kernels: Kernels::Plain,
        measured: None,
    }
}

/// The built-in profiles.
///
/// `cpu` is the embedded device: nominal figures of two server cores with plain memory copies. `toy` does one
/// FLOP and moves one byte of device memory per ns, so that timelines in tests can be read by eye; its link
/// is four times slower, so that recomputing pays.
pub static PROFILES: &[DeviceProfile] = &[
    plain("cpu", "the embedded CPU device: two server cores", [50e9, 10e9, 8e9], 2_000),
    plain("toy", "for tests: one FLOP and one byte a ns, a link four times slower", [1e9, 1e9, 0.25e9], 0),
    gpu(Gpu {
        name: "v100-16g",
        summary: "NVIDIA Tesla V100 SXM2 16 GB, PCIe 3 x16 to the host",
        teraflops: [15.7, 125.0, 0.0, 0.0],
        processors: 80,
        memory: 900.0,
        link: [12.0, 20.0],
        memory_mib: 16_160,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "gtx1080ti",
        summary: "NVIDIA GeForce GTX 1080 Ti 11 GB, PCIe 3 x16",
        teraflops: [11.3, 0.0, 0.0, 0.0],
        processors: 28,
        memory: 484.0,
        link: [12.0, 20.0],
        memory_mib: 11_178,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "rtx2080ti",
        summary: "NVIDIA GeForce RTX 2080 Ti 11 GB, PCIe 3 x16",
        teraflops: [13.4, 53.8, 0.0, 0.0],
        processors: 68,
        memory: 616.0,
        link: [12.0, 20.0],
        memory_mib: 11_019,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "a100-40g",
        summary: "NVIDIA A100 SXM4 40 GB, PCIe 4 x16 to the host",
        teraflops: [19.5, 312.0, 312.0, 156.0],
        processors: 108,
        memory: 1_555.0,
        link: [24.8, 35.0],
        memory_mib: 40_536,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "a100-80g",
        summary: "NVIDIA A100 SXM4 80 GB, PCIe 4 x16 to the host",
        teraflops: [19.5, 312.0, 312.0, 156.0],
        processors: 108,
        memory: 2_039.0,
        link: [24.8, 35.0],
        memory_mib: 81_251,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "h100",
        summary: "NVIDIA H100 SXM5 80 GB, PCIe 5 x16 to the host",
        teraflops: [66.9, 989.4, 989.4, 494.7],
        processors: 132,
        memory: 3_350.0,
        link: [55.6, 83.4],
        memory_mib: 81_559,
        reserve_mib: 1536,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
    gpu(Gpu {
        name: "h200",
        summary: "NVIDIA H200 SXM 141 GB, PCIe 5 x16 to the host",
        teraflops: [66.9, 989.4, 989.4, 494.7],
        processors: 132,
        memory: 4_800.0,
        link: [55.6, 83.4],
        memory_mib: 143_771,
        reserve_mib: 1536,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
];
