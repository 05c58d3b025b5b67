//! The default planner's search.

mod select;
mod state;

use crate::problem::Problem;
use crate::scheme::Scheme;
use crate::sequence::Sequence;

/// First cut.
pub fn first(p: &Problem, capacity: u64) -> Option<(u64, Scheme)> {
    let sequence = Sequence::of_order(p, 0..p.ops.len() as u32);
    let mut s = state::State::new(p, sequence, capacity, true);
    if !select::greedy(&mut s) {
        return None;
    }
    let step = s.decode(8);
    Some((step, s.scheme))
}
