//! Times by events with timing, in a pool of their own: timing makes every record slower.

use cudarc::driver::sys::{self, CUevent, CUresult};

use super::Cuda;
use crate::api::done;
use crate::clock::{Clock, Facts};
use crate::devices::free;
use crate::{Component, GpuError, Libraries, Stream};

/// The function for the time between two events that every driver has; the bindings have that of newer drivers alone.
const ELAPSED: &str = "cuEventElapsedTime";
type Elapsed = extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// The pool of marks.
#[derive(Debug, Default)]
pub(super) struct Marks(Vec<CUevent>);

impl Marks {
    /// Frees every handle; nothing may be running.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(super) fn destroy(&mut self) {
        for event in self.0.drain(..) {
            // SAFETY: the event was made, is freed once, and nothing uses it any more.
            unsafe { sys::cuEventDestroy_v2(event) };
        }
    }

    fn get(&self, mark: usize) -> Result<CUevent, GpuError> {
        let bounds = GpuError::Bounds { start: mark, len: 1, arena: self.0.len() };
        self.0.get(mark).copied().ok_or(bounds)
    }
}

impl Clock for Cuda {
    fn reserve_marks(&mut self, marks: usize) -> Result<(), GpuError> {
        Libraries::get().require(Component::Driver)?.require(&["cuEventRecordWithFlags", ELAPSED])?;
        self.marks.destroy();
        for _ in 0..marks {
            let event = self.new_event(sys::CUevent_flags::CU_EVENT_DEFAULT)?;
            self.marks.0.push(event);
        }
        Ok(())
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn mark(&mut self, queue: Stream, mark: usize) -> Result<(), GpuError> {
        let outside = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        let flags = if self.captured.capturing { outside } else { 0 };
        let (event, stream) = (self.marks.get(mark)?, self.stream(queue));
        // SAFETY: event and stream exist.
        done("cuEventRecordWithFlags", unsafe { sys::cuEventRecordWithFlags(event, stream, flags) })
    }

    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn elapsed_ns(&mut self, from: usize, to: usize) -> Result<i64, GpuError> {
        let driver = Libraries::get().require(Component::Driver)?;
        let mut ms = 0f32;
        let (from, to) = (self.marks.get(from)?, self.marks.get(to)?);
        // SAFETY: the function has this type in every version of the driver. The events exist, and a number is written.
        let elapsed = unsafe { driver.function::<Elapsed>(ELAPSED)? };
        done(ELAPSED, elapsed(&mut ms, from, to))?;
        Ok((f64::from(ms) * 1e6) as i64)
    }

    fn facts(&self) -> Result<Facts, GpuError> {
        let (free_bytes, total_bytes) = free()?;
        Ok(Facts {
            name: self.info.name.clone(),
            processors: self.info.processors,
            free_bytes,
            total_bytes,
            context_bytes: self.context.bytes,
        })
    }
}
