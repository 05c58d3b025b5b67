//! The built-in profiles.
//!
//! Peaks and memory throughputs are those of NVIDIA's documents, without sparsity: "NVIDIA Tesla V100 GPU
//! Architecture" (SXM2), "NVIDIA GeForce GTX 1080" white paper and product page (1080 Ti), "NVIDIA Turing GPU
//! Architecture" (2080 Ti reference clocks; its 16-bit products accumulate in `f32` at half rate), "NVIDIA
//! A100 Tensor Core GPU" data sheet (SXM), "NVIDIA H100 Tensor Core GPU" data sheet (SXM5), "NVIDIA H200
//! Tensor Core GPU" data sheet (SXM), "NVIDIA Ampere GA102 GPU Architecture" (3060, 3090, A6000; GeForce
//! cards accumulate in `f32` at half rate), "NVIDIA Ada GPU Architecture" (4060 Ti, 4090), "NVIDIA RTX
//! Blackwell GPU Architecture" (5060 Ti, 5090, PRO 6000), data sheets of T4, A10, L4 and L40S, and "NVIDIA
//! Blackwell Architecture Technical Brief" (B200). `memory_bytes` is what the driver reports as the total.
//!
//! Links are the throughput that copies of page-locked memory reach, not that of the bus: 12 GB/s one way and
//! 20 GB/s both ways on PCIe 3 (SwapAdvisor, section 6.1), 24.8 GB/s one way (nvbandwidth) and 35 GB/s both
//! ways on PCIe 4 (NVIDIA developer forum, topic 352186), 55.6 GB/s one way on PCIe 5 ("NVbandwidth: Your
//! Essential Tool for Measuring GPU Interconnect and Memory Performance", NVIDIA); both ways on PCIe 5 is 1.5
//! times that, between the ratios of the other two. Links of eight lanes have half of those of sixteen.
//!
//! Host memory is an assumption, since a card says nothing of it: half of the 204.8 GB/s of eight channels of
//! DDR4-3200 in a server; in a desktop computer 40 of the 51.2 GB/s of two channels of DDR4-3200, and from
//! Ada on 70 of the 89.6 GB/s of two of DDR5-5600. A measured profile has the real figure.
//!
//! Fixed times: a kernel of a stream or captured graph begins about 2 us after the one before it on Pascal to
//! Ampere ("Getting Started with CUDA Graphs", NVIDIA, has 3.4 us for one whose work takes 2.9 us, and 3.8 us
//! without a graph). The time before the first byte of an asynchronous copy is assumed as 10 us, 8 us on
//! Hopper. The reserve is an estimate of the driver's context and loaded kernels, 0.5 GiB, and 1.5 GiB on
//! Hopper, where library images are larger and graphs take more; a measured profile has the real figure.

use std::borrow::Cow;

use super::{DeviceProfile, Kernels, Peaks};

const MIB: u64 = 1 << 20;

/// GB/s of links one way, and both ways together.
const PCIE_3: [f64; 2] = [12.0, 20.0];
const PCIE_4: [f64; 2] = [24.8, 35.0];
const PCIE_4_X8: [f64; 2] = [12.4, 17.5];
const PCIE_5: [f64; 2] = [55.6, 83.4];
const PCIE_5_X8: [f64; 2] = [27.8, 41.7];

/// GB/s of host memory in servers, and in desktop computers of two generations.
const SERVER: f64 = 100.0;
const DDR4: f64 = 40.0;
const DDR5: f64 = 70.0;

/// Share of their peak that units for matrix products are fed for: those that add up `f32` at the full rate,
/// and those at half of it.
const FULL_RATE: f64 = 0.7;
const HALF_RATE: f64 = 0.88;

/// Figures in which the profiles of GPUs differ.
struct Gpu {
    name: &'static str,
    summary: &'static str,
    /// FLOP per ps (TFLOP/s): `f32`, `f16`, `bf16`, `tf32`; 0 where there are no units for it.
    teraflops: [f64; 4],
    share: f64,
    processors: u32,
    /// GB/s.
    memory: f64,
    /// GB/s one way and both ways together.
    link: [f64; 2],
    /// GB/s of host memory.
    host: f64,
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
        tensor_share: g.share,
        processors: g.processors,
        memory_bytes_per_s: g.memory * 1e9,
        d2h_bytes_per_s: g.link[0] * 1e9,
        h2d_bytes_per_s: g.link[0] * 1e9,
        duplex_total_bytes_per_s: g.link[1] * 1e9,
        host_bytes_per_s: Some(g.host * 1e9),
        host_latency_ns: None,
        kernel_latency_ns: g.kernel_latency_ns,
        copy_latency_ns: g.copy_latency_ns,
        memory_bytes: Some(g.memory_mib * MIB),
        reserve_bytes: g.reserve_mib * MIB,
        compute_slowdown: None,
        conv_workspace: *memc_cuda::CONV_WORKSPACE.start(),
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
        tensor_share: FULL_RATE,
        processors: 1,
        memory_bytes_per_s: memory,
        d2h_bytes_per_s: link,
        h2d_bytes_per_s: link,
        duplex_total_bytes_per_s: 2.0 * link,
        host_bytes_per_s: None,
        host_latency_ns: None,
        kernel_latency_ns: latency,
        copy_latency_ns: latency,
        memory_bytes: None,
        reserve_bytes: 0,
        compute_slowdown: None,
        conv_workspace: *memc_cuda::CONV_WORKSPACE.start(),
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
        share: FULL_RATE,
        processors: 80,
        memory: 900.0,
        link: PCIE_3,
        host: SERVER,
        memory_mib: 16_160,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "gtx1080ti",
        summary: "NVIDIA GeForce GTX 1080 Ti 11 GB, PCIe 3 x16",
        teraflops: [11.3, 0.0, 0.0, 0.0],
        share: FULL_RATE,
        processors: 28,
        memory: 484.0,
        link: PCIE_3,
        host: DDR4,
        memory_mib: 11_178,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "rtx2080ti",
        summary: "NVIDIA GeForce RTX 2080 Ti 11 GB, PCIe 3 x16",
        teraflops: [13.4, 53.8, 0.0, 0.0],
        share: HALF_RATE,
        processors: 68,
        memory: 616.0,
        link: PCIE_3,
        host: DDR4,
        memory_mib: 11_019,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "t4",
        summary: "NVIDIA T4 16 GB, PCIe 3 x16",
        teraflops: [8.1, 65.0, 0.0, 0.0],
        share: FULL_RATE,
        processors: 40,
        memory: 320.0,
        link: PCIE_3,
        host: SERVER,
        memory_mib: 15_360,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "a100-40g",
        summary: "NVIDIA A100 SXM4 40 GB, PCIe 4 x16 to the host",
        teraflops: [19.5, 312.0, 312.0, 156.0],
        share: FULL_RATE,
        processors: 108,
        memory: 1_555.0,
        link: PCIE_4,
        host: SERVER,
        memory_mib: 40_536,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "a100-80g",
        summary: "NVIDIA A100 SXM4 80 GB, PCIe 4 x16 to the host",
        teraflops: [19.5, 312.0, 312.0, 156.0],
        share: FULL_RATE,
        processors: 108,
        memory: 2_039.0,
        link: PCIE_4,
        host: SERVER,
        memory_mib: 81_251,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "rtx3060",
        summary: "NVIDIA GeForce RTX 3060 12 GB, PCIe 4 x16",
        teraflops: [12.7, 25.5, 25.5, 12.7],
        share: HALF_RATE,
        processors: 28,
        memory: 360.0,
        link: PCIE_4,
        host: DDR4,
        memory_mib: 12_288,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "rtx3090",
        summary: "NVIDIA GeForce RTX 3090 24 GB, PCIe 4 x16",
        teraflops: [35.6, 71.0, 71.0, 35.6],
        share: HALF_RATE,
        processors: 82,
        memory: 936.0,
        link: PCIE_4,
        host: DDR4,
        memory_mib: 24_576,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "a10",
        summary: "NVIDIA A10 24 GB, PCIe 4 x16",
        teraflops: [31.2, 125.0, 125.0, 62.5],
        share: FULL_RATE,
        processors: 72,
        memory: 600.0,
        link: PCIE_4,
        host: SERVER,
        memory_mib: 23_028,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "a6000",
        summary: "NVIDIA RTX A6000 48 GB, PCIe 4 x16",
        teraflops: [38.7, 154.8, 154.8, 77.4],
        share: FULL_RATE,
        processors: 84,
        memory: 768.0,
        link: PCIE_4,
        host: SERVER,
        memory_mib: 49_140,
        reserve_mib: 512,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "rtx4060ti-16g",
        summary: "NVIDIA GeForce RTX 4060 Ti 16 GB, PCIe 4 x8",
        teraflops: [22.1, 44.1, 44.1, 22.1],
        share: HALF_RATE,
        processors: 34,
        memory: 288.0,
        link: PCIE_4_X8,
        host: DDR5,
        memory_mib: 16_380,
        reserve_mib: 512,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "rtx4090",
        summary: "NVIDIA GeForce RTX 4090 24 GB, PCIe 4 x16",
        teraflops: [82.6, 165.2, 165.2, 82.6],
        share: HALF_RATE,
        processors: 128,
        memory: 1_008.0,
        link: PCIE_4,
        host: DDR5,
        memory_mib: 24_564,
        reserve_mib: 512,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "l4",
        summary: "NVIDIA L4 24 GB, PCIe 4 x16",
        teraflops: [30.3, 121.0, 121.0, 60.0],
        share: FULL_RATE,
        processors: 58,
        memory: 300.0,
        link: PCIE_4,
        host: SERVER,
        memory_mib: 23_034,
        reserve_mib: 512,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "l40s",
        summary: "NVIDIA L40S 48 GB, PCIe 4 x16",
        teraflops: [91.6, 362.0, 362.0, 183.0],
        share: FULL_RATE,
        processors: 142,
        memory: 864.0,
        link: PCIE_4,
        host: SERVER,
        memory_mib: 46_068,
        reserve_mib: 512,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 10_000,
    }),
    gpu(Gpu {
        name: "h100",
        summary: "NVIDIA H100 SXM5 80 GB, PCIe 5 x16 to the host",
        teraflops: [66.9, 989.4, 989.4, 494.7],
        share: FULL_RATE,
        processors: 132,
        memory: 3_350.0,
        link: PCIE_5,
        host: SERVER,
        memory_mib: 81_559,
        reserve_mib: 1536,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
    gpu(Gpu {
        name: "h200",
        summary: "NVIDIA H200 SXM 141 GB, PCIe 5 x16 to the host",
        teraflops: [66.9, 989.4, 989.4, 494.7],
        share: FULL_RATE,
        processors: 132,
        memory: 4_800.0,
        link: PCIE_5,
        host: SERVER,
        memory_mib: 143_771,
        reserve_mib: 1536,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
    gpu(Gpu {
        name: "rtx5060ti-16g",
        summary: "NVIDIA GeForce RTX 5060 Ti 16 GB, PCIe 5 x8",
        teraflops: [23.7, 47.4, 47.4, 23.7],
        share: HALF_RATE,
        processors: 36,
        memory: 448.0,
        link: PCIE_5_X8,
        host: DDR5,
        memory_mib: 16_311,
        reserve_mib: 1024,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
    gpu(Gpu {
        name: "rtx5090",
        summary: "NVIDIA GeForce RTX 5090 32 GB, PCIe 5 x16",
        teraflops: [104.8, 209.5, 209.5, 104.8],
        share: HALF_RATE,
        processors: 170,
        memory: 1_792.0,
        link: PCIE_5,
        host: DDR5,
        memory_mib: 32_607,
        reserve_mib: 1024,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
    gpu(Gpu {
        name: "rtxpro6000",
        summary: "NVIDIA RTX PRO 6000 Blackwell 96 GB, PCIe 5 x16",
        teraflops: [125.0, 503.8, 503.8, 251.9],
        share: FULL_RATE,
        processors: 188,
        memory: 1_792.0,
        link: PCIE_5,
        host: DDR5,
        memory_mib: 97_887,
        reserve_mib: 1024,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
    gpu(Gpu {
        name: "b200",
        summary: "NVIDIA B200 180 GB, PCIe 5 x16 to the host",
        teraflops: [75.0, 2_250.0, 2_250.0, 1_125.0],
        share: FULL_RATE,
        processors: 148,
        memory: 7_700.0,
        link: PCIE_5,
        host: SERVER,
        memory_mib: 183_359,
        reserve_mib: 1536,
        kernel_latency_ns: 1_500,
        copy_latency_ns: 8_000,
    }),
];
