//! The largest of a range of numbers. Does not change once it is made.

/// Where the largest of a range of numbers is, in constant time: a sparse table.
pub(super) struct Most {
    numbers: Vec<u64>,
    /// For every power of two, the place of the largest of as many numbers from each place on.
    levels: Vec<Vec<usize>>,
}

impl Most {
    /// The table of the numbers, in `n log n` time.
    pub(super) fn new(numbers: Vec<u64>) -> Most {
        let mut levels = vec![(0..numbers.len()).collect::<Vec<usize>>()];
        let mut width = 1;
        while 2 * width <= numbers.len() {
            let below = &levels[levels.len() - 1];
            let larger = |i: usize| {
                let (a, b) = (below[i], below[i + width]);
                if numbers[b] > numbers[a] { b } else { a }
            };
            let level = (0..=numbers.len() - 2 * width).map(larger).collect();
            levels.push(level);
            width *= 2;
        }
        Most { numbers, levels }
    }

    /// The first place of the largest number in a half-open range; none where that is empty.
    pub(super) fn of(&self, from: usize, to: usize) -> Option<usize> {
        let to = to.min(self.numbers.len());
        let level = to.checked_sub(from)?.checked_ilog2()? as usize;
        let places = self.levels.get(level)?;
        let (a, b) = (*places.get(from)?, *places.get(to - (1 << level))?);
        Some(if self.numbers[b] > self.numbers[a] { b } else { a })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_every_range_is_found() {
        let numbers: Vec<u64> = (0..37u64).map(|i| (i * i * 7 + 3) % 23).collect();
        let most = Most::new(numbers.clone());
        for from in 0..numbers.len() {
            for to in from..=numbers.len() {
                let expected = (from..to).max_by_key(|&i| (numbers[i], usize::MAX - i));
                assert_eq!(most.of(from, to), expected, "{from}..{to}");
            }
        }
    }
}
