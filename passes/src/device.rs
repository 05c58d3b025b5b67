//! Device profiles: the few numbers that the cost model needs of a device.

/// Throughputs and latencies of one device and its link to the host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeviceProfile {
    /// Name on the command line.
    pub name: &'static str,
    /// Arithmetic throughput in FLOP per second.
    pub flops_per_s: f64,
    /// Device memory throughput in bytes per second.
    pub memory_bytes_per_s: f64,
    /// Copy throughput from device to host in bytes per second.
    pub d2h_bytes_per_s: f64,
    /// Copy throughput from host to device in bytes per second.
    pub h2d_bytes_per_s: f64,
    /// Fixed time of every kernel in ns.
    pub kernel_latency_ns: u64,
    /// Fixed time of every copy in ns.
    pub copy_latency_ns: u64,
    /// Bytes of the budget that the driver and its libraries take.
    pub reserve_bytes: u64,
}

/// The profiles known by name.
///
/// `cpu` is the embedded device: nominal figures of two server cores with plain memory copies. `toy` does one
/// FLOP and moves one byte of device memory per ns, so that timelines in tests can be read by eye; its link is four
/// times slower, so that recomputing pays.
pub const PROFILES: &[DeviceProfile] = &[
    DeviceProfile {
        name: "cpu",
        flops_per_s: 50e9,
        memory_bytes_per_s: 10e9,
        d2h_bytes_per_s: 8e9,
        h2d_bytes_per_s: 8e9,
        kernel_latency_ns: 2_000,
        copy_latency_ns: 2_000,
        reserve_bytes: 0,
    },
    DeviceProfile {
        name: "toy",
        flops_per_s: 1e9,
        memory_bytes_per_s: 1e9,
        d2h_bytes_per_s: 0.25e9,
        h2d_bytes_per_s: 0.25e9,
        kernel_latency_ns: 0,
        copy_latency_ns: 0,
        reserve_bytes: 0,
    },
];

impl DeviceProfile {
    /// The profile called `name`.
    pub fn named(name: &str) -> Option<&'static DeviceProfile> {
        PROFILES.iter().find(|p| p.name == name)
    }

    /// Time of a kernel in ns, by the roofline of arithmetic and memory traffic.
    pub fn kernel_ns(&self, cost: &memc_ir::Cost) -> u64 {
        let arithmetic = cost.flops as f64 / self.flops_per_s;
        let traffic = (cost.bytes_read as f64 + cost.bytes_written as f64) / self.memory_bytes_per_s;
        self.kernel_latency_ns.saturating_add((arithmetic.max(traffic) * 1e9).ceil() as u64)
    }

    /// Time of a copy of `bytes` from device to host in ns.
    pub fn d2h_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns.saturating_add((bytes as f64 / self.d2h_bytes_per_s * 1e9).ceil() as u64)
    }

    /// Time of a copy of `bytes` from host to device in ns.
    pub fn h2d_ns(&self, bytes: u64) -> u64 {
        self.copy_latency_ns.saturating_add((bytes as f64 / self.h2d_bytes_per_s * 1e9).ceil() as u64)
    }
}
