//! Commands that are captured once and replayed as a whole.
//!
//! The contract is that of CUDA's stream capture, over all three queues. While capturing nothing runs; a command becomes a
//! node that comes after the node before it on its queue, and after the records it waits for. Within a capture only
//! records of the same capture can be waited for, and such records mean nothing outside of it. What has to cross the border
//! goes through [`Graphs::record_outside`] and [`Graphs::wait_outside`].

use crate::{Driver, GpuError, Stream};

/// A captured graph, by a number of the implementation's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Graph(pub usize);

/// A driver that captures and replays.
pub trait Graphs: Driver {
    /// From now on commands of all queues are captured.
    ///
    /// # Errors
    /// The driver cannot capture, or is capturing.
    fn begin_capture(&mut self) -> Result<(), GpuError>;

    /// Ends the capture, also where a command was refused in it, and makes its graph ready to be launched.
    ///
    /// # Errors
    /// A command was refused, or the driver takes no such graph.
    fn end_capture(&mut self) -> Result<Graph, GpuError>;

    /// Launches a graph. Launches of one graph run one after another; nothing orders them with queues and with launches of
    /// other graphs but events that are recorded or waited for outside.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn replay(&mut self, graph: Graph) -> Result<(), GpuError>;

    /// Within a capture: every launch of the graph records the event, for whoever waits for it afterwards.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn record_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError>;

    /// Within a capture: every launch of the graph waits for the last record of the event before the launch.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn wait_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError>;
}
