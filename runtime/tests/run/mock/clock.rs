//! The mock's clock: the machine's.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use memc_gpu::{Clock, Facts, GpuError, Space, Stream};

use super::Mock;

/// Time at which each mark was recorded.
pub(super) type Marks = Arc<Mutex<Vec<Option<Instant>>>>;

impl Clock for Mock {
    fn reserve_marks(&mut self, marks: usize) -> Result<(), GpuError> {
        self.marks = Arc::new(Mutex::new(vec![None; marks]));
        Ok(())
    }

    fn mark(&mut self, queue: Stream, mark: usize) -> Result<(), GpuError> {
        let marks = self.marks.clone();
        assert!(mark < marks.lock().unwrap().len());
        #[allow(clippy::disallowed_methods, reason = "marks are times")]
        self.issue(queue, move || marks.lock().unwrap()[mark] = Some(Instant::now()))
    }

    fn elapsed_ns(&mut self, from: usize, to: usize) -> Result<i64, GpuError> {
        let marks = self.marks.lock().unwrap();
        let (from, to) = (marks[from].unwrap(), marks[to].unwrap());
        let ns = |a: Instant, b: Instant| i64::try_from(b.duration_since(a).as_nanos()).unwrap();
        Ok(if to >= from { ns(from, to) } else { -ns(to, from) })
    }

    fn facts(&self) -> Result<Facts, GpuError> {
        let loaded = if self.kernels.is_empty() { 0 } else { self.behaviour.loads };
        let free_bytes = (1 << 24) - self.arenas[Space::Dev as usize].len as u64 - loaded;
        let name = "Mock GPU".to_owned();
        Ok(Facts { name, processors: 8, free_bytes, total_bytes: 1 << 28, context_bytes: None })
    }
}
