//! The data section: places of the states' initial bytes.
//!
//! A plan and its buckets have one section. Each state of the plan itself has a place of its own, and those
//! that a bucket adds follow. Bytes that an earlier plan of these has placed are not placed again.

use std::{collections::BTreeMap, iter};

use crate::{DATA_ALIGN, Init, Plan, PlanError, State};

/// The initial bytes of a state.
pub(crate) struct Blob<'a> {
    /// The bucket that has the state, counted from 1; 0 for the plan itself.
    pub(crate) bucket: usize,
    /// Index of the state there.
    pub(crate) index: usize,
    pub(crate) state: &'a State,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) hash: [u8; 32],
}

impl Plan {
    /// Gives every state with [`Init::Data`] its place in the data section, and returns the length of the
    /// section in bytes. The places are in the order of the plan's own states, then of those of each bucket,
    /// without gaps beyond [`DATA_ALIGN`].
    ///
    /// A bucket's state takes no room where the plan itself or an earlier bucket has a state with the same
    /// bytes. Where that plan has several, the first of the bucket's is at the place of its first, the second
    /// at that of its second, and all beyond its last at that of its last.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if the section would exceed the range of `u64`.
    pub fn layout_data(&mut self) -> Result<u64, PlanError> {
        let mut places = Places::default();
        let tables = iter::once(&mut self.states).chain(self.buckets.iter_mut().map(|b| &mut b.states));
        for (bucket, states) in tables.enumerate() {
            for State { name, init, .. } in states {
                let Init::Data { offset, bytes, hash } = init else { continue };
                let place = places.place(bucket, *bytes, *hash);
                *offset = place.ok_or_else(|| too_much_data(name, bucket))?.offset;
            }
        }
        Ok(places.end)
    }

    /// Length of the data section in bytes.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if a state's data is not where [`Plan::layout_data`] would put it.
    pub fn data_bytes(&self) -> Result<u64, PlanError> {
        let mut places = Places::default();
        for Blob { bucket, state, offset, bytes, hash, .. } in self.blobs() {
            let place = places.place(bucket, bytes, hash);
            let place = place.ok_or_else(|| too_much_data(&state.name, bucket))?.offset;
            if offset != place {
                let what = format!("data at offset {offset}; its place in the data section is {place}");
                return Err(PlanError::invalid(format!("state `{}`", state.name), what).in_bucket(bucket));
            }
        }
        Ok(places.end)
    }

    /// The initial bytes that have a place of their own, in the order of the places, of a plan whose places
    /// are those of [`Plan::layout_data`].
    pub(crate) fn placed(&self) -> impl Iterator<Item = Blob<'_>> {
        let mut places = Places::default();
        self.blobs().filter(move |blob| {
            places.place(blob.bucket, blob.bytes, blob.hash).is_some_and(|place| place.is_new)
        })
    }

    fn blobs(&self) -> impl Iterator<Item = Blob<'_>> {
        self.with_buckets().enumerate().flat_map(|(bucket, plan)| {
            plan.states.iter().enumerate().filter_map(move |(index, state)| match state.init {
                Init::Data { offset, bytes, hash } => {
                    Some(Blob { bucket, index, state, offset, bytes, hash })
                }
                Init::Zeros | Init::Random { .. } => None,
            })
        })
    }
}

/// The places that were given so far.
#[derive(Default)]
struct Places {
    /// End of the last of them.
    end: u64,
    /// By hash and length of the bytes.
    shared: BTreeMap<([u8; 32], u64), Shared>,
}

/// The places of equal bytes.
struct Shared {
    /// The plan or bucket that has a place for each of its states with these bytes.
    owner: usize,
    offsets: Vec<u64>,
    /// The last bucket that shared them, and the number of its states that did.
    reader: usize,
    readers: usize,
}

struct Place {
    offset: u64,
    is_new: bool,
}

impl Places {
    /// The place of the bytes of the next state of this bucket, or of the plan itself as bucket 0. `None`
    /// where the section would be too long.
    fn place(&mut self, bucket: usize, bytes: u64, hash: [u8; 32]) -> Option<Place> {
        let unplaced = Shared { owner: bucket, offsets: Vec::new(), reader: bucket, readers: 0 };
        let shared = self.shared.entry((hash, bytes)).or_insert(unplaced);
        if shared.owner == bucket {
            let offset = self.end.checked_next_multiple_of(DATA_ALIGN)?;
            self.end = offset.checked_add(bytes)?;
            shared.offsets.push(offset);
            return Some(Place { offset, is_new: true });
        }
        if shared.reader != bucket {
            (shared.reader, shared.readers) = (bucket, 0);
        }
        let offset = shared.offsets.get(shared.readers).or(shared.offsets.last()).copied()?;
        shared.readers = shared.readers.saturating_add(1);
        Some(Place { offset, is_new: false })
    }
}

fn too_much_data(state: &str, bucket: usize) -> PlanError {
    PlanError::invalid(format!("state `{state}`"), "the data section is too large").in_bucket(bucket)
}
