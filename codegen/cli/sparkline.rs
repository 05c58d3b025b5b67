//! Live bytes over a step as a line of blocks, for terminals.

use memc::Sample;
use memc_ir::Bytes;

use crate::output::width;

/// Heights of a column, from nothing to the most.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Most columns, and those that are left to names and sizes.
const COLUMNS: usize = 60;
const OTHERS: usize = 32;

/// A line for each step: its name, its live bytes over time, and the most of them. The lines have one scale
/// of bytes; each has its own time. Nothing where stdout is no terminal, or too narrow a one.
pub(crate) fn lines(steps: &[(&str, &[Sample])]) -> String {
    let columns = width().map_or(0, |width| width.saturating_sub(OTHERS).min(COLUMNS));
    if columns < 8 { String::new() } else { drawn(steps, columns) }
}

fn drawn(steps: &[(&str, &[Sample])], columns: usize) -> String {
    let most = |samples: &[Sample]| samples.iter().map(|sample| sample.bytes).max().unwrap_or(0);
    let top = steps.iter().map(|(_, samples)| most(samples)).max().unwrap_or(0).max(1);
    let line = |(name, samples): &(&str, &[Sample])| {
        let bars: String = heights(samples, columns).into_iter().map(|bytes| block(bytes, top)).collect();
        format!("live, {name:<9} {bars} {}\n", Bytes(most(samples)).short())
    };
    steps.iter().map(line).collect()
}

/// The most of each of so many equal parts of the time from the first sample to the last.
fn heights(samples: &[Sample], columns: usize) -> Vec<u64> {
    let end = samples.last().map_or(0, |sample| sample.ns).max(1);
    let column = |ns: u64| (u128::from(ns) * columns as u128 / (u128::from(end) + 1)) as usize;
    let mut heights = vec![0u64; columns];
    for (i, sample) in samples.iter().enumerate() {
        let next = samples.get(i + 1).map_or(end, |next| next.ns);
        // A level lasts until the next one.
        for height in heights.iter_mut().take(column(next) + 1).skip(column(sample.ns)) {
            *height = (*height).max(sample.bytes);
        }
    }
    heights
}

fn block(bytes: u64, top: u64) -> char {
    let steps = BLOCKS.len() as u128 - 1;
    let height = (u128::from(bytes) * steps).div_ceil(u128::from(top.max(1)));
    BLOCKS.get(height as usize).copied().unwrap_or('█')
}

#[cfg(test)]
mod tests {
    use memc::Sample;

    use super::drawn;

    fn samples(levels: &[(u64, u64)]) -> Vec<Sample> {
        levels.iter().map(|&(ns, bytes)| Sample { ns, bytes }).collect()
    }

    #[test]
    fn a_step_rises_and_falls_on_the_scale_of_the_larger_one() {
        let (whole, less) =
            (samples(&[(0, 0), (40, 8 << 20), (80, 1)]), samples(&[(0, 2 << 20), (9, 4 << 20)]));
        let text = drawn(&[("unplanned", &whole), ("planned", &less)], 8);
        assert_eq!(text, "live, unplanned    █████ 8.00 MiB\nlive, planned   ▂▂▂▂▂▂▂▄ 4.00 MiB\n");
    }

    #[test]
    fn a_step_without_memory_is_empty() {
        let empty = " ".repeat(8);
        assert_eq!(drawn(&[("planned", &[])], 8), format!("live, planned   {empty} 0 B\n"));
    }
}
