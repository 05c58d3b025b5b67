//! The protobuf messages of the meta section. Tags and numbers are never reused.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct WirePlan {
    #[prost(message, optional, tag = "1")]
    pub(super) meta: Option<WireMeta>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kernels: Vec<WireKernel>,
    #[prost(message, repeated, tag = "3")]
    pub(super) states: Vec<WireState>,
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<WireInput>,
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<WireOutput>,
    #[prost(uint32, tag = "6")]
    pub(super) events: u32,
    #[prost(message, repeated, tag = "7")]
    pub(super) prologue: Vec<WireCommand>,
    #[prost(message, repeated, tag = "8")]
    pub(super) body: Vec<WireCommand>,
    #[prost(message, repeated, tag = "9")]
    pub(super) epilogue: Vec<WireCommand>,
    /// Absent without a tuning section, whose kernels are `tuned`.
    #[prost(message, optional, tag = "10")]
    pub(super) tuning: Option<WireTuning>,
    #[prost(message, repeated, tag = "11")]
    pub(super) tuned: Vec<WireTuned>,
}

/// Greatest tag of [`WirePlan`].
pub(super) const LAST_TAG: usize = 11;

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireMeta {
    #[prost(string, tag = "1")]
    pub(super) producer: String,
    #[prost(string, tag = "2")]
    pub(super) model: String,
    #[prost(string, tag = "3")]
    pub(super) source: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) source_hash: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) planner: String,
    #[prost(string, tag = "6")]
    pub(super) profile: String,
    #[prost(uint64, tag = "7")]
    pub(super) seed: u64,
    /// Names and values in turn.
    #[prost(string, repeated, tag = "8")]
    pub(super) options: Vec<String>,
    #[prost(uint64, tag = "9")]
    pub(super) budget_bytes: u64,
    #[prost(uint64, tag = "10")]
    pub(super) reserve_bytes: u64,
    #[prost(uint64, tag = "11")]
    pub(super) dev_bytes: u64,
    #[prost(uint64, tag = "12")]
    pub(super) host_bytes: u64,
    /// The fields of [`crate::Claims`] in order of declaration.
    #[prost(uint64, repeated, tag = "13")]
    pub(super) claims: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireKernel {
    #[prost(string, tag = "1")]
    pub(super) op: String,
    #[prost(string, tag = "2")]
    pub(super) attrs: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) operands: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) results: Vec<String>,
    #[prost(uint64, tag = "5")]
    pub(super) workspace_bytes: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireState {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) role: String,
    #[prost(string, tag = "3")]
    pub(super) ty: String,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) home: Vec<u64>,
    /// Absent for zeros.
    #[prost(message, optional, tag = "5")]
    pub(super) data: Option<WireData>,
    #[prost(message, optional, tag = "6")]
    pub(super) random: Option<WireRandom>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireData {
    #[prost(uint64, tag = "1")]
    pub(super) offset: u64,
    #[prost(uint64, tag = "2")]
    pub(super) bytes: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) hash: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireRandom {
    #[prost(uint64, tag = "1")]
    pub(super) seed: u64,
    #[prost(string, tag = "2")]
    pub(super) kind: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireInput {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) ty: String,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) slot: Vec<u64>,
    /// Absent, like `learning_rate`, for the step number.
    #[prost(message, optional, tag = "4")]
    pub(super) data: Option<WireFeedData>,
    /// Bits of the default.
    #[prost(fixed32, optional, tag = "5")]
    pub(super) learning_rate: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireFeedData {
    #[prost(string, tag = "1")]
    pub(super) source: String,
    #[prost(uint32, tag = "2")]
    pub(super) micro: u32,
    #[prost(sint64, tag = "3")]
    pub(super) low: i64,
    #[prost(sint64, tag = "4")]
    pub(super) high: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireOutput {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) ty: String,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) slot: Vec<u64>,
    #[prost(string, tag = "4")]
    pub(super) role: String,
}

/// Slices are packed as three numbers each: space, offset, bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WireCommand {
    #[prost(uint32, tag = "1")]
    pub(super) stream: u32,
    #[prost(uint32, tag = "2")]
    pub(super) action: u32,
    /// Kernel, event, state, input or output.
    #[prost(uint32, tag = "3")]
    pub(super) index: u32,
    /// Reads of a launch, source of a copy.
    #[prost(uint64, repeated, tag = "4")]
    pub(super) reads: Vec<u64>,
    /// Writes of a launch, destination of a copy, range of a free.
    #[prost(uint64, repeated, tag = "5")]
    pub(super) writes: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub(super) workspace: Vec<u64>,
    #[prost(string, tag = "7")]
    pub(super) label: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireTuning {
    #[prost(string, tag = "1")]
    pub(super) device: String,
    #[prost(string, tag = "2")]
    pub(super) arch: String,
    /// Names and versions in turn.
    #[prost(string, repeated, tag = "3")]
    pub(super) libraries: Vec<String>,
    #[prost(string, tag = "4")]
    pub(super) rounding: String,
    #[prost(bool, tag = "5")]
    pub(super) allow_nondeterminism: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WireTuned {
    #[prost(uint32, tag = "1")]
    pub(super) kernel: u32,
    /// The algorithm of a product; absent for a convolution.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) product: Option<Vec<u8>>,
    /// Algorithm and kind of arithmetic of a convolution; empty for a product.
    #[prost(uint32, repeated, tag = "3")]
    pub(super) convolution: Vec<u32>,
    #[prost(uint64, tag = "4")]
    pub(super) workspace_bytes: u64,
    #[prost(uint64, tag = "5")]
    pub(super) ns: u64,
    #[prost(uint64, tag = "6")]
    pub(super) default_ns: u64,
}

// Values of `WireCommand::action`; 0 is no action.
pub(super) const LAUNCH: u32 = 1;
pub(super) const COPY: u32 = 2;
pub(super) const RECORD: u32 = 3;
pub(super) const WAIT: u32 = 4;
pub(super) const FREE: u32 = 5;
pub(super) const LOAD: u32 = 6;
pub(super) const STORE: u32 = 7;
pub(super) const HOST_WRITE: u32 = 8;
pub(super) const HOST_READ: u32 = 9;
