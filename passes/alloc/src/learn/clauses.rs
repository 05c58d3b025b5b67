//! Learned clauses: sets of literals of which one is true.

use super::trail::{Cause, Conflict, FALSE, Lit, TRUE, Trail};

struct Clause {
    /// The first two are watched.
    lits: Vec<Lit>,
    /// Number of decisions that it connected when it was learned. Few promise more use.
    glue: u32,
}

#[derive(Clone, Copy)]
struct Watch {
    clause: u32,
    /// Another literal of the clause: while it is true, the clause needs no look.
    other: Lit,
}

pub(super) struct Clauses {
    all: Vec<Clause>,
    /// By literal, the clauses to look at when it becomes false.
    watches: Vec<Vec<Watch>>,
}

impl Clauses {
    pub(super) fn new(literals: usize) -> Clauses {
        Clauses { all: Vec::new(), watches: vec![Vec::new(); literals] }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn lits(&self, clause: u32) -> &[Lit] {
        &self.all[clause as usize].lits
    }

    /// Adds a clause of at least two literals, of which the first two are to be watched.
    pub(super) fn add(&mut self, lits: Vec<Lit>, glue: u32) -> u32 {
        let clause = self.all.len() as u32;
        self.watches[lits[0] as usize].push(Watch { clause, other: lits[1] });
        self.watches[lits[1] as usize].push(Watch { clause, other: lits[0] });
        self.all.push(Clause { lits, glue });
        clause
    }

    /// Draws the conclusions of a literal that became false.
    pub(super) fn propagate(&mut self, t: &mut Trail, lit: Lit) -> Result<(), Conflict> {
        let mut list = std::mem::take(&mut self.watches[lit as usize]);
        t.steps += list.len() as u64;
        let (mut kept, mut result) = (0, Ok(()));
        let mut i = 0;
        while i < list.len() {
            let w = list[i];
            i += 1;
            if t.value[w.other as usize] == TRUE {
                list[kept] = w;
                kept += 1;
                continue;
            }
            let lits = &mut self.all[w.clause as usize].lits;
            if lits[0] == lit {
                lits.swap(0, 1);
            }
            let first = lits[0];
            if t.value[first as usize] != TRUE
                && let Some(k) = (2..lits.len()).find(|&k| t.value[lits[k] as usize] != FALSE)
            {
                lits.swap(1, k);
                self.watches[lits[1] as usize].push(Watch { clause: w.clause, other: first });
                continue;
            }
            list[kept] = Watch { clause: w.clause, other: first };
            kept += 1;
            match t.value[first as usize] {
                TRUE => {}
                FALSE => {
                    result = Err(Conflict::Clause(w.clause));
                    break;
                }
                _ => t.set(first, Cause::Clause(w.clause)),
            }
        }
        list.drain(kept..i);
        self.watches[lit as usize] = list;
        result
    }

    /// Forgets the half that promises least, and all that hold anyway. No decision is made.
    pub(super) fn reduce(&mut self, t: &Trail) {
        let mut order: Vec<u32> = (0..self.all.len() as u32).collect();
        order.sort_by_key(|&i| {
            let c = &self.all[i as usize];
            (c.glue, c.lits.len(), u32::MAX - i)
        });
        let mut keep = vec![false; self.all.len()];
        for &i in &order[..order.len() / 2] {
            keep[i as usize] = true;
        }
        let old = std::mem::take(&mut self.all);
        self.watches.iter_mut().for_each(Vec::clear);
        for (mut c, keep) in old.into_iter().zip(keep) {
            c.lits.retain(|&l| t.value[l as usize] != FALSE);
            if (keep || c.glue <= 3)
                && c.lits.len() >= 2
                && c.lits.iter().all(|&l| t.value[l as usize] != TRUE)
            {
                self.add(c.lits, c.glue);
            }
        }
    }
}
