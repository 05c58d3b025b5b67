//! Memory for the bodies of all requests together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that bodies may take.
#[derive(Debug)]
pub(super) struct Room {
    taken: AtomicUsize,
    most: usize,
}

/// The bytes of one body, which are free again when it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    /// Room for `most` bytes.
    pub(super) fn new(most: usize) -> Arc<Room> {
        Arc::new(Room { taken: AtomicUsize::new(0), most })
    }

    /// Takes some bytes; `None` where they are not there.
    pub(super) fn take(self: &Arc<Room>, bytes: usize) -> Option<Taken> {
        let more = |taken: usize| taken.checked_add(bytes).filter(|&sum| sum <= self.most);
        let taken = self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        taken.is_ok().then(|| Taken { room: self.clone(), bytes })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes are taken up to the limit, and again once they are given back.
    #[test]
    fn bytes_are_bounded_together() {
        let room = Room::new(10);
        let first = room.take(6).expect("there is room");
        assert!(room.take(5).is_none() && room.take(usize::MAX).is_none());
        let second = room.take(4).expect("there is room");
        drop(first);
        assert!(room.take(7).is_none() && room.take(6).is_some());
        drop(second);
        assert!(room.take(10).is_some());
    }
}
