//! Edge finding that can say why.
//!
//! The rules are those of the exact search (`exact/edges.rs`): buffers that must end by some offset, and
//! another that cannot lie among or below them, so lies above them all. Here every conclusion keeps the
//! bounds that it rests on.

use crate::exact::insertion_sort;

use super::trail::{Cause, Conflict, Fact, Need, Trail};

/// A task of a section in one direction.
#[derive(Clone, Copy)]
struct Task {
    start: i64,
    end: i64,
    p: i64,
    buffer: u32,
}

/// After so many looks in a row that brought nothing, one more look is left out,
const PATIENCE: u32 = 8;

/// up to this number of looks.
const MOST_IDLE: u32 = 16 * PATIENCE;

/// Memory of the propagation, kept between calls.
#[derive(Default)]
pub(super) struct Sections {
    /// The members of every section by start, in both directions.
    members: [Vec<Vec<u32>>; 2],
    tasks: Vec<Task>,
    by_end: Vec<u32>,
    largest: Vec<i64>,
    tree: Tree,
    /// By section, how many looks in a row brought nothing, and how many are to be left out.
    idle: Vec<(u32, u32)>,
    raised: Vec<Raised>,
}

/// A lower bound, and the set that it comes from.
#[derive(Clone, Copy)]
struct Raised {
    start: i64,
    /// All tasks that end by this.
    bound: i64,
}

impl Sections {
    pub(super) fn new(t: &Trail) -> Sections {
        let (members, idle) = ([t.sections.clone(), t.sections.clone()], vec![(0, 0); t.sections.len()]);
        Sections { members, idle, ..Sections::default() }
    }

    /// Propagates a section, less often the longer that has brought nothing.
    pub(super) fn visit(&mut self, t: &mut Trail, section: usize) -> Result<(), Conflict> {
        if let Some(left) = self.idle[section].1.checked_sub(1) {
            self.idle[section].1 = left;
            return Ok(());
        }
        let before = t.entries.len();
        let result = self.propagate(t, section);
        let fruitless = result.is_ok() && t.entries.len() == before;
        let looks = if fruitless { (self.idle[section].0 + 1).min(MOST_IDLE) } else { 0 };
        self.idle[section] = (looks, looks / PATIENCE);
        result
    }

    /// Propagates a section in one direction and, where that changes nothing, in the other.
    fn propagate(&mut self, t: &mut Trail, section: usize) -> Result<(), Conflict> {
        for direction in 0..2 {
            let members = &mut self.members[direction][section];
            insertion_sort(members, |b| t.bound[2 * b as usize + direction]);
            let Some(range) = contested(t, members, direction) else { return Ok(()) };
            self.tasks.clear();
            self.tasks.extend(members[range].iter().map(|&b| Task {
                start: t.bound[2 * b as usize + direction],
                end: t.end(b as usize, direction),
                p: t.p[b as usize],
                buffer: b,
            }));
            t.steps += 2 * self.tasks.len() as u64;
            self.find(t, direction)?;
            let mut changed = false;
            for i in 0..self.tasks.len() {
                let (task, raised) = (self.tasks[i], self.raised[i]);
                let side = 2 * task.buffer as usize + direction;
                if raised.start > task.start && raised.start > t.bound[side] {
                    changed = true;
                    let from = t.needs.len() as u32;
                    self.reasons(t, direction, i);
                    let cause = Cause::Section { from, to: t.needs.len() as u32 };
                    t.raise(side, raised.start, cause)?;
                }
            }
            if changed {
                return Ok(());
            }
        }
        Ok(())
    }

    /// For every task a lower bound of its start.
    fn find(&mut self, t: &mut Trail, direction: usize) -> Result<(), Conflict> {
        let Sections { tasks, by_end, largest, raised, tree, .. } = self;
        raised.clear();
        raised.extend(tasks.iter().map(|t| Raised { start: t.start, bound: 0 }));
        by_end.clear();
        by_end.extend(0..tasks.len() as u32);
        by_end.sort_unstable_by_key(|&i| (tasks[i as usize].end, i));
        // The largest of the tasks from each on.
        largest.clear();
        largest.resize(tasks.len() + 1, 0);
        for (k, &i) in by_end.iter().enumerate().rev() {
            largest[k] = largest[k + 1].max(tasks[i as usize].p);
        }
        tree.clear(tasks.len());
        t.steps += 4 * tasks.len() as u64;
        for (k, &i) in by_end.iter().enumerate() {
            let task = tasks[i as usize];
            tree.add(i as usize, task.start, task.p);
            let (bound, end) = (task.end, tree.end());
            if end > bound {
                return Err(Conflict::Section(overload(t, tasks, direction, bound)));
            }
            let last = by_end.get(k + 1).is_none_or(|&next| tasks[next as usize].end > bound);
            if !last || end <= bound - largest[k + 1] {
                continue;
            }
            t.steps += tasks.len() as u64 / 2;
            let (mut from, mut rest) = (i64::MIN, tree.bytes());
            for (task, raised) in tasks.iter().zip(raised.iter_mut()) {
                if task.end <= bound {
                    from = from.max(task.start + rest);
                    rest -= task.p;
                    continue;
                }
                let inside = rest > 0 && task.start + task.p + rest > bound;
                if (inside || from > bound - task.p) && end > raised.start {
                    *raised = Raised { start: end, bound };
                }
            }
        }
        Ok(())
    }

    /// Adds the bounds that the new start of a task rests on.
    fn reasons(&self, t: &mut Trail, direction: usize, of: usize) {
        let (task, Raised { start, bound }) = (self.tasks[of], self.raised[of]);
        let among = |other: &&Task| other.end <= bound;
        // From where on the tasks of the set leave no room for this one as well, and from where on they end
        // where it begins.
        let (mut bytes, mut room, mut stack) = (0, None, None);
        for other in self.tasks.iter().rev().filter(among) {
            bytes += other.p;
            if room.is_none() && other.start.min(task.start) + bytes + task.p > bound {
                room = Some((other.start, other.start.min(task.start)));
            }
            if stack.is_none() && other.start + bytes >= start {
                stack = Some(other.start);
            }
        }
        let (Some((room, least)), Some(stack)) = (room, stack) else { return };
        need(t, 2 * task.buffer as usize + direction, least);
        for other in self.tasks.iter().rev().filter(among) {
            if other.start < room.min(stack) {
                break;
            }
            let from_room = if other.start >= room { least } else { i64::MIN };
            let from_stack = if other.start >= stack { stack } else { i64::MIN };
            let side = 2 * other.buffer as usize + direction;
            need(t, side, from_room.max(from_stack));
            need(t, side ^ 1, -bound);
        }
    }
}

/// A side is needed at a value.
fn need(t: &mut Trail, side: usize, value: i64) {
    let Fact::Bound { value: first, .. } = t.entries[side].fact else { return };
    if first < value {
        t.needs.push(Need { at: t.last[side], value });
    }
}

/// The bounds of tasks that end by `bound`, and are too large for that.
fn overload(t: &Trail, tasks: &[Task], direction: usize, bound: i64) -> Vec<Need> {
    let (mut bytes, mut needs) = (0, Vec::new());
    let mut found = None;
    for task in tasks.iter().rev().filter(|task| task.end <= bound) {
        if found.is_some_and(|start| task.start < start) {
            break;
        }
        bytes += task.p;
        let side = 2 * task.buffer as usize + direction;
        needs.push(side);
        if found.is_none() && task.start + bytes > bound {
            found = Some(task.start);
            break;
        }
    }
    let start = found.unwrap_or(i64::MIN);
    let both = |side| [Need { at: t.last[side], value: start }, Need { at: t.last[side ^ 1], value: -bound }];
    needs.into_iter().flat_map(both).collect()
}

/// The tasks of a set by start, and where they end when they begin at the earliest (a theta tree, P. Vilim).
#[derive(Default)]
struct Tree {
    /// Bytes and end of every subtree, the leaves last.
    nodes: Vec<(i64, i64)>,
}

/// The end of no task.
const NEVER: i64 = i64::MIN / 2;

impl Tree {
    fn clear(&mut self, tasks: usize) {
        self.nodes.clear();
        self.nodes.resize(2 * tasks.next_power_of_two(), (0, NEVER));
    }

    fn add(&mut self, task: usize, start: i64, p: i64) {
        let mut i = task + self.nodes.len() / 2;
        self.nodes[i] = (p, start + p);
        while i > 1 {
            i /= 2;
            let (low, high) = (self.nodes[2 * i], self.nodes[2 * i + 1]);
            self.nodes[i] = (low.0 + high.0, high.1.max(low.1 + high.0));
        }
    }

    fn bytes(&self) -> i64 {
        self.nodes[1].0
    }

    fn end(&self) -> i64 {
        self.nodes[1].1
    }
}

/// The members, by start, that are not surely before or after all others.
fn contested(t: &Trail, members: &[u32], direction: usize) -> Option<std::ops::Range<usize>> {
    let surely = |a: u32, b: u32| {
        let (a, b) = (a as usize, b as usize);
        t.bound[2 * a + direction] + t.p[a] > t.end(b, direction) - t.p[b]
    };
    let (mut from, mut to) = (0, members.len());
    while from + 1 < to && members[from + 1..to].iter().all(|&b| surely(b, members[from])) {
        from += 1;
    }
    while from + 1 < to && members[from..to - 1].iter().all(|&b| surely(members[to - 1], b)) {
        to -= 1;
    }
    (from + 1 < to).then_some(from..to)
}
