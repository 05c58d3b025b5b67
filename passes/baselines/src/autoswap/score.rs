//! Candidates, their priority scores, and the selection by them (sections IV-A, IV-B and IV-D).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memc_ir::{Arena, Id};
use memc_planner::{Copies, Gap, GapIx, Genotype, StepPos, Swap};

/// Weights of AOA, DOA, WDOA and SWDOA, in the order of equation 3.
pub(super) type Weights = [f64; 4];

/// Variables below this many bytes are not swapped as long as larger ones do.
const THRESHOLD: u64 = 1 << 20;

/// The load curve of a step, and how time passes under it.
pub(super) struct Load {
    /// Bytes during every step of the sequence.
    pub(super) bytes: Arena<StepPos, u64>,
    /// Start of every step in ns without stalls; one more entry for the end.
    pub(super) start: Arena<StepPos, u64>,
}

impl Load {
    pub(super) fn new(genotype: &Genotype) -> Load {
        let mut start = Arena::from(vec![0u64]);
        for ns in genotype.sequence.ns.values() {
            start.push(start.last().copied().unwrap_or(0) + ns);
        }
        Load { bytes: genotype.usage(), start }
    }

    /// Time of every step in ns.
    fn steps_ns(&self) -> impl Iterator<Item = u64> {
        let start = self.start.values();
        start.clone().skip(1).zip(start).map(|(end, start)| end - start)
    }

    /// The step with the highest load: the peak time.
    pub(super) fn peak(&self) -> StepPos {
        self.bytes.ids().max_by_key(|&i| (self.bytes[i], Reverse(i))).unwrap_or_default()
    }

    /// Steps between the accesses at a gap's ends, half-open; those of the second range are in the next
    /// iteration.
    pub(super) fn absent(&self, gap: &Gap) -> [(StepPos, StepPos); 2] {
        let n = self.bytes.next_id();
        let (a, b) = (StepPos::at(gap.from + 1), StepPos::at(gap.to));
        [(a.min(n), b.min(n)), (StepPos(0), StepPos(b.0.saturating_sub(n.0)))]
    }

    fn contains(&self, gap: &Gap, step: StepPos) -> bool {
        self.absent(gap).iter().any(|&(a, b)| a <= step && step < b)
    }

    /// Time between the accesses in ns.
    fn between(&self, gap: &Gap) -> u64 {
        self.absent(gap).iter().map(|&(a, b)| self.start[b] - self.start[a]).sum()
    }

    /// Takes the variable out of the load between its accesses.
    pub(super) fn remove(&mut self, gap: &Gap) {
        for (a, b) in self.absent(gap) {
            for bytes in self.bytes.range_mut(a, b) {
                *bytes = bytes.saturating_sub(gap.bytes);
            }
        }
    }
}

/// Gaps that may be swapped, of variables that live across the peak.
fn candidates(genotype: &Genotype, load: &Load, threshold: u64) -> Vec<GapIx> {
    let (s, n) = (&genotype.sequence, load.bytes.len());
    let peak = load.peak();
    let is = |&g: &GapIx| {
        let gap = &s.gaps[g];
        genotype.swaps[g].is_none()
            && !gap.arrives()
            && gap.bytes >= threshold
            && (load.contains(gap, peak) || (gap.wraps(n) && gap.open()))
    };
    s.gaps.ids().filter(is).collect()
}

/// Duration of absence in ns: between the accesses, less the copies.
pub(super) fn doa(load: &Load, gap: &Gap, copies_ns: u64) -> f64 {
    load.between(gap) as f64 - copies_ns as f64
}

/// Area of absence: that by the bytes, or over the bytes where it is negative.
pub(super) fn aoa(load: &Load, gap: &Gap, copies_ns: u64) -> f64 {
    let (doa, bytes) = (doa(load, gap, copies_ns), gap.bytes.max(1) as f64);
    if doa < 0.0 { doa / bytes } else { doa * bytes }
}

/// Submodular WDOA of every gap: the area that it had when it was the largest of those left, each taken out
/// of the load in turn.
pub(super) fn swdoa(genotype: &Genotype, load: &Load, gaps: &[GapIx]) -> Vec<f64> {
    let mut areas = Areas::new(load);
    let mut scores = vec![0.0; gaps.len()];
    // Areas only fall, so one computed earlier bounds the present one from above.
    let entry = |areas: &Areas<'_>, k: usize| (areas.of(&genotype.sequence.gaps[gaps[k]]), Reverse(k));
    let mut heap: BinaryHeap<(u128, Reverse<usize>)> = (0..gaps.len()).map(|k| entry(&areas, k)).collect();
    while let Some((_, Reverse(k))) = heap.pop() {
        let now = entry(&areas, k);
        if heap.peek().is_some_and(|next| *next > now) {
            heap.push(now);
            continue;
        }
        scores[k] = now.0 as f64;
        areas.remove(&genotype.sequence.gaps[gaps[k]]);
    }
    scores
}

/// Areas under a load curve that variables are taken out of, each in logarithmic time: sums over ranges of
/// what is added to ranges, by two binary indexed trees (Fenwick, 1994).
pub(super) struct Areas<'a> {
    load: &'a Load,
    /// Area of the whole load up to every step.
    whole: Vec<i128>,
    /// Over what starts to be removed at steps: bytes, and bytes times the start of the step in ns.
    removed: Vec<(i128, i128)>,
}

impl<'a> Areas<'a> {
    pub(super) fn new(load: &'a Load) -> Self {
        let mut whole = vec![0i128];
        for (bytes, ns) in load.bytes.values().zip(load.steps_ns()) {
            whole.push(whole[whole.len() - 1] + i128::from(*bytes) * i128::from(ns));
        }
        let removed = vec![(0, 0); load.start.len()];
        Areas { load, whole, removed }
    }

    /// Area under the load curve between the accesses at a gap's ends, in bytes times ns.
    pub(super) fn of(&self, gap: &Gap) -> u128 {
        let left: i128 =
            self.load.absent(gap).iter().map(|&(a, b)| self.until(b) - self.until(a.min(b))).sum();
        left.max(0) as u128
    }

    fn until(&self, step: StepPos) -> i128 {
        let (mut bytes, mut weighted, mut i) = (0, 0, step.index());
        while i > 0 {
            bytes += self.removed[i - 1].0;
            weighted += self.removed[i - 1].1;
            i &= i - 1;
        }
        self.whole[step.index()] - (bytes * i128::from(self.load.start[step]) - weighted)
    }

    pub(super) fn remove(&mut self, gap: &Gap) {
        let bytes = i128::from(gap.bytes);
        for (a, b) in self.load.absent(gap).into_iter().filter(|(a, b)| a < b) {
            for (step, bytes) in [(a, bytes), (b, -bytes)] {
                let weighted = bytes * i128::from(self.load.start[step]);
                let mut i = step.index() + 1;
                while i <= self.removed.len() {
                    self.removed[i - 1].0 += bytes;
                    self.removed[i - 1].1 += weighted;
                    i += i & i.wrapping_neg();
                }
            }
        }
    }
}

/// Mean 0 and deviation 1.
fn standardised(mut scores: Vec<f64>) -> Vec<f64> {
    let n = scores.len().max(1) as f64;
    let mean = scores.iter().sum::<f64>() / n;
    let deviation = (scores.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / n).sqrt();
    for s in &mut scores {
        *s = if deviation > 0.0 { (*s - mean) / deviation } else { 0.0 };
    }
    scores
}

/// The combined score of every gap.
fn combined(
    genotype: &Genotype,
    load: &Load,
    copies: &Copies,
    gaps: &[GapIx],
    weights: &Weights,
) -> Vec<f64> {
    let each = |f: &dyn Fn(&Gap, u64) -> f64| -> Vec<f64> {
        gaps.iter().map(|&g| f(&genotype.sequence.gaps[g], copies.out[g] + copies.back[g])).collect()
    };
    let mut total = vec![0.0; gaps.len()];
    for (k, &weight) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
        let scores = match k {
            0 => each(&|gap, ns| aoa(load, gap, ns)),
            1 => each(&|gap, ns| doa(load, gap, ns)),
            2 => {
                let areas = Areas::new(load);
                each(&|gap, _| areas.of(gap) as f64)
            }
            _ => swdoa(genotype, load, gaps),
        };
        for (sum, score) in total.iter_mut().zip(standardised(scores)) {
            *sum += weight * score;
        }
    }
    total
}

/// Swaps gaps by their scores until the load is within the limit; otherwise the load that is left.
pub(super) fn select(
    genotype: &mut Genotype,
    copies: &Copies,
    limit: u64,
    weights: &Weights,
    swap: bool,
) -> Result<(), u64> {
    let mut load = Load::new(genotype);
    let mut threshold = THRESHOLD;
    let n = load.bytes.len();
    loop {
        let peak = load.bytes.get(load.peak()).copied().unwrap_or(0);
        if peak <= limit {
            return Ok(());
        }
        let gaps = if swap { candidates(genotype, &load, threshold) } else { Vec::new() };
        if !gaps.iter().any(|&g| load.contains(&genotype.sequence.gaps[g], load.peak())) {
            if threshold == 0 {
                return Err(peak);
            }
            threshold = 0;
            continue;
        }
        let scores = combined(genotype, &load, copies, &gaps, weights);
        let mut order: Vec<usize> = (0..gaps.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        for k in order {
            if load.bytes.values().all(|&b| b <= limit) {
                break;
            }
            let gap = genotype.sequence.gaps[gaps[k]];
            genotype.swaps[gaps[k]] = Some(Swap::longest(&gap, n));
            load.remove(&gap);
        }
    }
}
