//! Graphs by stream capture.
//!
//! The capture begins on the compute stream. The others are forked from it by an event before their first
//! command, and joined by events after their last, as CUDA demands. Each graph has a stream of its own that
//! its launches run in.

use std::ptr::null_mut;

use cudarc::driver::sys;

use super::Cuda;
use crate::api::done;
use crate::driver::{Graph, Graphs};
use crate::{Component, GpuError, Libraries, Stream};

/// Functions that are called to capture and replay.
const SYMBOLS: &[&str] = &[
    "cuEventRecordWithFlags",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];

/// Nodes have the priorities of the streams that they were captured on, not that of the launch's stream.
const NODE_PRIORITY: u64 =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0 as u64;
const RECORD_EXTERNAL: u32 = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
const WAIT_EXTERNAL: u32 = sys::CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL as u32;

/// Captured graphs, and the events that capturing takes.
#[derive(Debug, Default)]
pub(super) struct Captured {
    graphs: Vec<(sys::CUgraphExec, sys::CUstream)>,
    /// One for the fork and one for each stream that joins.
    joints: Vec<sys::CUevent>,
    pub(super) capturing: bool,
}

impl Captured {
    /// The streams that graphs are launched in.
    pub(super) fn streams(&self) -> impl Iterator<Item = &sys::CUstream> {
        self.graphs.iter().map(|(_, stream)| stream)
    }

    /// Frees every handle; nothing may be running.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(super) fn destroy(&mut self) {
        // SAFETY: every handle was made, is freed once, and nothing uses it any more. Errors have nobody to
        // go to.
        unsafe {
            for (graph, stream) in self.graphs.drain(..) {
                if !graph.is_null() {
                    sys::cuGraphExecDestroy(graph);
                }
                sys::cuStreamDestroy_v2(stream);
            }
            for event in self.joints.drain(..) {
                sys::cuEventDestroy_v2(event);
            }
        }
    }
}

/// The streams that join the capture of the compute stream.
const OTHERS: [Stream; 3] = [Stream::DeviceToHost, Stream::HostToDevice, Stream::HostCompute];

impl Cuda {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn join(&self, joint: usize, from: Stream, to: Stream) -> Result<(), GpuError> {
        let Some(&event) = self.captured.joints.get(joint) else { return Ok(()) };
        // SAFETY: event and streams exist.
        unsafe {
            done("cuEventRecord", sys::cuEventRecord(event, self.stream(from)))?;
            done("cuStreamWaitEvent", sys::cuStreamWaitEvent(self.stream(to), event, 0))
        }
    }

    /// Makes a captured graph one that can be launched, and puts it on the device.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn instantiate(&mut self, graph: sys::CUgraph) -> Result<Graph, GpuError> {
        let mut stream = null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a handle to write.
        let made = unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, 0) };
        done("cuStreamCreateWithPriority", made)?;
        self.captured.graphs.push((null_mut(), stream));
        let mut ready = null_mut();
        // SAFETY: a handle to write; the graph exists.
        let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut ready, graph, NODE_PRIORITY) };
        done("cuGraphInstantiate", result)?;
        self.captured.graphs.last_mut().into_iter().for_each(|(graph, _)| *graph = ready);
        // SAFETY: graph and stream exist.
        unsafe {
            done("cuGraphUpload", sys::cuGraphUpload(ready, stream))?;
            done("cuStreamSynchronize", sys::cuStreamSynchronize(stream))?;
        }
        Ok(Graph(self.captured.graphs.len() - 1))
    }
}

impl Graphs for Cuda {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn begin_capture(&mut self) -> Result<(), GpuError> {
        Libraries::get().require(Component::Driver)?.require(SYMBOLS)?;
        while self.captured.joints.len() <= OTHERS.len() {
            let event = self.new_event(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            self.captured.joints.push(event);
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream exists.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(self.stream(Stream::Compute), mode) };
        done("cuStreamBeginCapture", begun)?;
        self.captured.capturing = true;
        let forked = OTHERS.into_iter().try_for_each(|queue| self.join(0, Stream::Compute, queue));
        if forked.is_err() {
            // The stream would stay in a capture that nobody ends.
            let _ = self.end_capture();
        }
        forked
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn end_capture(&mut self) -> Result<Graph, GpuError> {
        let mut joints = OTHERS.into_iter().zip(1..);
        let joined = joints.try_for_each(|(queue, joint)| self.join(joint, queue, Stream::Compute));
        self.captured.capturing = false;
        let mut graph = null_mut();
        // SAFETY: the stream exists; a handle to write.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream(Stream::Compute), &mut graph) };
        let made = joined.and(done("cuStreamEndCapture", ended)).and_then(|()| self.instantiate(graph));
        if !graph.is_null() {
            // SAFETY: the graph was made; one that can be launched is a copy.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        made
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn replay(&mut self, graph: Graph) -> Result<(), GpuError> {
        let arena = self.captured.graphs.len();
        let bounds = GpuError::Bounds { start: graph.0, len: 1, arena };
        let &(graph, stream) = self.captured.graphs.get(graph.0).ok_or(bounds)?;
        // SAFETY: graph and stream exist, and the graph's commands keep to the arenas.
        done("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph, stream) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn record_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        let (event, stream) = (self.event(event)?, self.stream(queue));
        // SAFETY: event and stream exist.
        done("cuEventRecordWithFlags", unsafe { sys::cuEventRecordWithFlags(event, stream, RECORD_EXTERNAL) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn wait_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError> {
        let (event, stream) = (self.event(event)?, self.stream(queue));
        // SAFETY: event and stream exist.
        done("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream, event, WAIT_EXTERNAL) })
    }
}
