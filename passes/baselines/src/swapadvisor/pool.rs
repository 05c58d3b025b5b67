//! The memory pool of an individual: size classes and the number of objects of each (Sec. 4.1, 5.3).

use memc_ir::Arena;
use memc_planner::{OpPos, Problem, TensorId};

use crate::random::Random;

/// The sizes that a step allocates, and what needs them.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    /// TS: the sizes in bytes, ascending.
    pub(super) bytes: Vec<u64>,
    /// Number of tensors and scratch spaces of each.
    pub(super) tensors: Vec<u64>,
    /// The size of every tensor, as a position in `bytes`.
    pub(super) of_tensor: Arena<TensorId, usize>,
    /// The size of every op's scratch space, likewise.
    pub(super) of_scratch: Arena<OpPos, Option<usize>>,
    /// Distinct sets of sizes that an op needs at once, tensors and scratch space; each is ascending.
    pub(super) sets: Vec<Vec<usize>>,
}

impl Sizes {
    /// Of a problem.
    pub(super) fn new(p: &Problem) -> Sizes {
        let scratch = p.ops.values().map(|op| op.workspace).filter(|&w| w > 0);
        let all = p.tensors.values().filter(|t| !t.touches.is_empty()).map(|t| t.bytes).chain(scratch);
        let mut bytes: Vec<u64> = all.collect();
        bytes.sort_unstable();
        bytes.dedup();
        let find = |b: u64| bytes.partition_point(|&x| x < b);
        let of_tensor: Arena<TensorId, usize> = p.tensors.values().map(|t| find(t.bytes)).collect();
        let of_scratch: Arena<OpPos, Option<usize>> =
            p.ops.values().map(|op| (op.workspace > 0).then(|| find(op.workspace))).collect();
        let mut tensors = vec![0; bytes.len()];
        // A tensor that is never touched may be larger than every size.
        for (_, &size) in p.tensors.values().zip(of_tensor.values()).filter(|(t, _)| !t.touches.is_empty()) {
            tensors[size] += 1;
        }
        for &size in of_scratch.values().flatten() {
            tensors[size] += 1;
        }
        let set = |i: OpPos| {
            let mut set: Vec<usize> = p.working_set(i).iter().map(|&t| of_tensor[t]).collect();
            set.extend(of_scratch[i]);
            set.sort_unstable();
            set
        };
        let mut sets: Vec<Vec<usize>> = p.ops.ids().map(set).collect();
        sets.sort_unstable();
        sets.dedup();
        Sizes { bytes, tensors, of_tensor, of_scratch, sets }
    }

    /// The classes whose smallest pool is smallest.
    pub(super) fn tightest(&self) -> Vec<usize> {
        let n = self.bytes.len();
        // For every number of smaller sizes: bytes of their smallest pool, and where its last class begins.
        let mut best: Vec<(u64, usize)> = vec![(0, 0)];
        let mut users: Vec<Vec<(usize, u32)>> = vec![Vec::new(); n];
        for (set, list) in self.sets.iter().enumerate() {
            for &size in list {
                match users[size].last_mut() {
                    Some(user) if user.0 == set => user.1 += 1,
                    _ => users[size].push((set, 1)),
                }
            }
        }
        let mut here = vec![0u64; self.sets.len()];
        for end in 1..=n {
            // The last class takes in ever smaller sizes.
            here.fill(0);
            let mut least = 0;
            let mut found = (u64::MAX, 0);
            for begin in (0..end).rev() {
                for &(set, count) in &users[begin] {
                    here[set] += u64::from(count);
                    least = least.max(here[set]);
                }
                let bytes = best[begin].0.saturating_add(self.bytes[end - 1].saturating_mul(least));
                found = found.min((bytes, begin));
            }
            best.push(found);
        }
        let mut cls = vec![0; n];
        let mut begins = Vec::new();
        let mut end = n;
        while end > 0 {
            end = best[end].1;
            begins.push(end);
        }
        for (class, &begin) in begins.iter().rev().enumerate() {
            cls[begin..].fill(class + 1);
        }
        cls
    }
}

/// A memory allocation: the part of a chromosome that is not the schedule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pool {
    /// CLS: for every size, its class, from 1 on; each is that of the size before or one more.
    pub(super) cls: Vec<usize>,
    /// CNT: for every class, the number of its objects.
    pub(super) cnt: Vec<u64>,
}

impl Pool {
    /// A pool of random classes, before CNT is repaired; the memory goes to them at random.
    pub(super) fn random(sizes: &Sizes, capacity: u64, random: &mut Random) -> Pool {
        let boundary = random.unit();
        let mut class = 1;
        let cls = (0..sizes.bytes.len()).map(|i| {
            class += usize::from(i > 0 && random.unit() < boundary);
            class
        });
        Pool::share(cls.collect(), sizes, capacity, || random.unit())
    }

    /// A pool of given classes, to which the memory goes by the bytes of their tensors times a weight each.
    pub(super) fn share(
        cls: Vec<usize>,
        sizes: &Sizes,
        capacity: u64,
        mut draw: impl FnMut() -> f64,
    ) -> Pool {
        let classes = cls.last().map_or(0, |&c| c);
        let mut pool = Pool { cnt: vec![1; classes], cls };
        let objects = pool.objects(&sizes.bytes);
        let mut weights = vec![0.0; classes];
        for (i, &class) in pool.cls.iter().enumerate() {
            weights[class - 1] += sizes.tensors[i] as f64 * sizes.bytes[i] as f64;
        }
        for weight in &mut weights {
            *weight *= draw();
        }
        let total = weights.iter().sum::<f64>().max(1.0);
        for ((count, weight), object) in pool.cnt.iter_mut().zip(&weights).zip(&objects) {
            *count = (capacity as f64 * weight / total / *object as f64) as u64;
        }
        pool
    }

    /// Bytes of an object of every class: the largest size in it.
    pub(super) fn objects(&self, bytes: &[u64]) -> Vec<u64> {
        let mut objects = vec![0; self.cls.last().map_or(0, |&c| c)];
        for (&class, &b) in self.cls.iter().zip(bytes) {
            objects[class - 1] = b;
        }
        objects
    }

    /// Bytes of the whole pool; more than any memory if that cannot be counted.
    pub(super) fn bytes(&self, objects: &[u64]) -> u64 {
        let add = |sum: u64, (&n, &b): (&u64, &u64)| sum.saturating_add(n.saturating_mul(b));
        self.cnt.iter().zip(objects).fold(0, add)
    }

    /// Makes the pool one that every op can run in: at least the objects that an op needs at once, at most
    /// one for every tensor, within memory; false when that cannot be.
    pub(super) fn fit(&mut self, sizes: &Sizes, capacity: u64) -> bool {
        let mut least = vec![0u64; self.cnt.len()];
        let mut here = vec![0u64; self.cnt.len()];
        for set in &sizes.sets {
            for &size in set {
                let class = self.cls[size] - 1;
                here[class] += 1;
                least[class] = least[class].max(here[class]);
            }
            for &size in set {
                here[self.cls[size] - 1] = 0;
            }
        }
        let mut most = vec![0u64; self.cnt.len()];
        for (&class, &n) in self.cls.iter().zip(&sizes.tensors) {
            most[class - 1] += n;
        }
        for ((count, &least), most) in self.cnt.iter_mut().zip(&least).zip(most) {
            *count = (*count).min(most).max(least);
        }
        self.repair(&self.objects(&sizes.bytes), &least, capacity)
    }

    /// Sec. 5.3: where the pool exceeds memory, every count decreases in inverse proportion to its class's
    /// size, the same bytes from every class, but not below `least`; false when that does not suffice.
    pub(super) fn repair(&mut self, objects: &[u64], least: &[u64], capacity: u64) -> bool {
        loop {
            let over = self.bytes(objects).saturating_sub(capacity);
            let able = self.cnt.iter().zip(least).filter(|(n, least)| n > least).count() as u64;
            if over == 0 || able == 0 {
                return over == 0;
            }
            let share = over.div_ceil(able);
            for ((count, &object), &least) in self.cnt.iter_mut().zip(objects).zip(least) {
                *count -= share.div_ceil(object.max(1)).min(count.saturating_sub(least));
            }
        }
    }

    /// CNT_EXT: for every size, the number of objects that it can use.
    pub(super) fn extended(&self) -> Vec<u64> {
        self.cls.iter().map(|&class| self.cnt[class - 1]).collect()
    }

    /// A pool from a mapping that may not be monotonic and counts for every size, both repaired.
    pub(super) fn assemble(mut cls: Vec<usize>, extended: &[u64]) -> Pool {
        // The least increase that makes it a sequence of equal or next classes.
        for i in (1..cls.len()).rev() {
            cls[i - 1] = cls[i - 1].max(cls[i].saturating_sub(1));
        }
        for i in 1..cls.len() {
            cls[i] = cls[i].max(cls[i - 1]);
        }
        let classes = cls.last().map_or(0, |&c| c);
        let mut sums = vec![(0u64, 0u64); classes];
        for (&class, &n) in cls.iter().zip(extended) {
            let sum = &mut sums[class - 1];
            *sum = (sum.0.saturating_add(n), sum.1 + 1);
        }
        let cnt = sums.iter().map(|&(sum, n)| ((sum + n / 2) / n.max(1)).max(1)).collect();
        Pool { cls, cnt }
    }

    /// Sec. 5.3, Fig. 5: both children of two pools that are cut after the same size, before CNT is repaired.
    pub(super) fn cross(a: &Pool, b: &Pool, cut: usize) -> [Pool; 2] {
        let (ea, eb) = (a.extended(), b.extended());
        // A step without tensors in the pool has no sizes to cut after.
        let cut = cut.min(ea.len());
        let join = |head: (&[usize], &[u64]), tail: (&[usize], &[u64])| {
            let cls = [&head.0[..cut], &tail.0[cut..]].concat();
            let extended = [&head.1[..cut], &tail.1[cut..]].concat();
            Pool::assemble(cls, &extended)
        };
        let (a, b) = ((a.cls.as_slice(), ea.as_slice()), (b.cls.as_slice(), eb.as_slice()));
        [join(b, a), join(a, b)]
    }

    /// Sec. 5.3: mutates elements of CLS and CNT, each with a probability, before CNT is repaired.
    pub(super) fn mutate(&self, probability: f64, random: &mut Random) -> Pool {
        let mut cls = self.cls.clone();
        for i in 1..cls.len() {
            if random.unit() >= probability {
                continue;
            }
            let joined = cls[i] == cls[i - 1];
            for class in &mut cls[i..] {
                *class = if joined { *class + 1 } else { *class - 1 };
            }
        }
        let mut pool = Pool::assemble(cls, &self.extended());
        for count in &mut pool.cnt {
            if random.unit() < probability {
                let mean = *count as f64;
                *count = random.normal(mean, (mean / 2.0).max(1.0)).round().max(1.0) as u64;
            }
        }
        pool
    }
}
