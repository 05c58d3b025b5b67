//! Timepoints: which completions on other streams every op has to await.
//!
//! Works on bytes, after layout: two ops conflict when they touch a common byte of one arena and at least one writes
//! it. Ops of one stream are ordered anyway. For every other conflicting pair, in program order and across the
//! boundary to the previous step, the later op awaits the earlier one, unless what it awaits already implies it
//! (vector clocks over the three streams). The step is walked twice; awaits that the first walk needs within a
//! step are kept even where the second finds them implied, since what implies them may be one of them.

use std::collections::BTreeMap;

use memc_ir::{Await, Code, Id, Module, OpId, SlotId, Space, Stream};

const STREAMS: [Stream; 3] = [Stream::Compute, Stream::DeviceToHost, Stream::HostToDevice];

/// An execution: op, walk (0 or 1), its sequence number on its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    op: OpId,
    walk: u8,
    stream: usize,
    number: u64,
}

/// Bytes with a common history: who wrote them last, and who read them since, per stream.
#[derive(Clone)]
struct Cell {
    end: u64,
    writer: Option<Run>,
    readers: [Option<Run>; 3],
}

/// Replaces all awaits by those that the layout needs.
///
/// Fails when a slot has no offset.
pub fn place_awaits(m: &mut Module) -> Result<(), String> {
    let mut walker = Walker::default();
    let mut awaits: BTreeMap<OpId, Vec<Await>> = BTreeMap::new();
    for walk in 0..2 {
        for &id in &m.order {
            if let Some(stream) = m.ops[id].stream().and_then(|s| STREAMS.iter().position(|&t| t == s)) {
                let found = walker.visit(m, id, walk, stream)?;
                awaits.entry(id).or_default().extend(found);
            }
        }
    }
    for (id, mut list) in awaits {
        list.sort_unstable();
        list.dedup();
        m.ops[id].awaits = list;
    }
    Ok(())
}

#[derive(Default)]
struct Walker {
    shadow: [BTreeMap<u64, Cell>; 2],
    /// What each stream is known to come after: numbers on the three streams.
    clocks: [[u64; 3]; 3],
    /// The clock right after every execution, by walk and op.
    after: BTreeMap<(u8, OpId), [u64; 3]>,
}

impl Walker {
    fn visit(&mut self, m: &Module, id: OpId, walk: u8, stream: usize) -> Result<Vec<Await>, String> {
        let op = &m.ops[id];
        let mut needs: Vec<Run> = Vec::new();
        let reads: Vec<SlotId> = op.operands.iter().filter_map(|&v| m.slot_of(v)).collect();
        let writes: Vec<SlotId> = match op.code {
            // A view touches nothing.
            Code::Compute(_) if op.is_view() => return Ok(Vec::new()),
            _ => op.slots.iter().copied().chain(op.workspace).collect(),
        };
        for &slot in &reads {
            self.cells(m, slot, |cell| needs.extend(cell.writer))?;
        }
        for &slot in &writes {
            self.cells(m, slot, |cell| {
                needs.extend(cell.writer);
                needs.extend(cell.readers.iter().flatten());
            })?;
        }
        // Latest first: awaiting it usually implies the rest.
        needs.retain(|r| r.stream != stream);
        needs.sort_by_key(|r| (std::cmp::Reverse((r.walk, r.number)), r.stream));
        let mut out = Vec::new();
        for need in needs {
            if self.clocks[stream][need.stream] >= need.number {
                continue;
            }
            let clock = self.after.get(&(need.walk, need.op)).copied().unwrap_or_default();
            for (mine, theirs) in self.clocks[stream].iter_mut().zip(clock) {
                *mine = (*mine).max(theirs);
            }
            out.push(Await { op: need.op, previous: need.walk < walk });
        }
        self.clocks[stream][stream] += 1;
        let run = Run { op: id, walk, stream, number: self.clocks[stream][stream] };
        self.after.insert((walk, id), self.clocks[stream]);
        for &slot in &reads {
            self.cells(m, slot, |cell| cell.readers[stream] = Some(run))?;
        }
        for &slot in &writes {
            self.overwrite(m, slot, run)?;
        }
        Ok(out)
    }

    /// The cells of the slot's arena, split at the ends of its bytes, and those ends.
    fn split(&mut self, m: &Module, slot: SlotId) -> Result<(&mut BTreeMap<u64, Cell>, u64, u64), String> {
        let place = &m.slots[slot];
        let Some(from) = place.offset else { return Err(format!("slot {} has no offset", slot.index())) };
        let to = from + place.bytes;
        let map = &mut self.shadow[usize::from(place.space == Space::Host)];
        split(map, from);
        split(map, to);
        Ok((map, from, to))
    }

    /// Gives the slot's bytes one history: written by `run`.
    fn overwrite(&mut self, m: &Module, slot: SlotId, run: Run) -> Result<(), String> {
        let (map, from, to) = self.split(m, slot)?;
        if from < to {
            while let Some((&at, _)) = map.range(from..to).next() {
                map.remove(&at);
            }
            map.insert(from, Cell { end: to, writer: Some(run), readers: [None; 3] });
        }
        Ok(())
    }

    /// Calls `f` on the cells that make up exactly the slot's bytes.
    fn cells(&mut self, m: &Module, slot: SlotId, mut f: impl FnMut(&mut Cell)) -> Result<(), String> {
        let (map, from, to) = self.split(m, slot)?;
        let mut at = from;
        while at < to {
            let next = map.range(at..to).next().map(|(&start, cell)| (start, cell.end));
            match next {
                Some((start, end)) if start == at => {
                    if let Some(cell) = map.get_mut(&at) {
                        f(cell);
                    }
                    at = end;
                }
                other => {
                    let end = other.map_or(to, |(start, _)| start);
                    let mut cell = Cell { end, writer: None, readers: [None; 3] };
                    f(&mut cell);
                    map.insert(at, cell);
                    at = end;
                }
            }
        }
        Ok(())
    }
}

/// Makes `at` a boundary between cells.
fn split(map: &mut BTreeMap<u64, Cell>, at: u64) {
    if let Some((_, cell)) = map.range_mut(..at).next_back()
        && cell.end > at
    {
        let right = cell.clone();
        cell.end = at;
        map.insert(at, right);
    }
}
