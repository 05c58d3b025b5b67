//! How many bytes a choice may use at every step, so that a layout fits what there is.

use super::Run;
use super::state::State;
use crate::place::{Space, What};
use crate::realise::{Realised, live};

impl<'a> Run<'a> {
    /// Allows fewer bytes where much is live while slots that the layout put too high are.
    pub(super) fn tighten(&self, s: &mut State<'a>, r: &Realised) {
        let (n, capacity) = (s.steps(), self.request.capacity);
        // For every moment of script time the step that it belongs to.
        let mut step_at = vec![0u32; r.trace.end as usize + 2];
        for c in &r.trace.commands {
            step_at[c.at as usize + 1] = u32::from(matches!(c.what, What::Run { .. }));
        }
        for i in 1..step_at.len() {
            step_at[i] += step_at[i - 1];
        }
        let mut load = vec![0u64; n + 1];
        for (live, &step) in live(&r.trace).into_iter().zip(&step_at) {
            let load = &mut load[step as usize];
            *load = live.max(*load);
        }
        let mut less = vec![0u64; n];
        for slot in r.trace.slots.iter().filter(|s| s.space == Space::Dev) {
            let over = (slot.offset.unwrap_or(0) + slot.bytes).saturating_sub(capacity);
            if over == 0 {
                continue;
            }
            for &(from, to) in &slot.live {
                let (a, b) = (step_at[from as usize] as usize, step_at[to as usize] as usize);
                let life = a.min(n)..b.min(n);
                let most = load[life.clone()].iter().copied().max().unwrap_or(0);
                for i in life.filter(|&i| load[i] + over > most) {
                    less[i] = less[i].max(over);
                }
            }
        }
        for (i, less) in less.into_iter().enumerate() {
            let floor = s.scheme.sequence.needs[i];
            let Some(room) = s.room.get_mut(s.anchor[i] as usize) else { continue };
            *room = (*room).min(s.capacity[i].saturating_sub(less / 2).max(floor.min(s.capacity[i])));
        }
        s.resize();
    }

    /// Allows more bytes again: half of what was taken away.
    pub(super) fn loosen(&self, s: &mut State<'a>) {
        let capacity = self.request.capacity;
        for room in &mut s.room {
            *room += capacity.saturating_sub(*room) / 2;
        }
        s.resize();
    }
}
