//! Published instances, at the heights that are known for them.

use memc_alloc::csv::read;
use memc_alloc::{Options, check, solve};

/// The height that is found with so much effort, for a capacity or as low as possible.
fn height(text: &str, capacity: Option<u64>, effort: u8) -> (u64, u64) {
    let instance = read(text).expect("the instance is right").instance;
    let solution = solve(&instance, &Options { capacity, ..Options::effort(effort) }, &|| false);
    assert_eq!(check(&instance, &solution.offsets), Ok(solution.height));
    (solution.height, solution.load)
}

#[test]
fn hard_instances_of_minimalloc_fit_their_capacity() {
    let capacity = 1 << 20;
    for text in [include_str!("data/B.csv"), include_str!("data/C.csv"), include_str!("data/E.csv")] {
        let (height, load) = height(text, Some(capacity), 2);
        assert!(load <= height && height <= capacity, "{height}");
    }
}

/// Those that the search settles by learning from conflicts.
#[test]
fn wide_instances_of_minimalloc_fit_their_capacity() {
    let texts = [
        include_str!("data/F.csv"),
        include_str!("data/G.csv"),
        include_str!("data/H.csv"),
        include_str!("data/J.csv"),
        include_str!("data/K.csv"),
    ];
    for text in texts {
        assert!(height(text, Some(1 << 20), 2).0 <= 1 << 20);
    }
}

#[test]
fn minimalloc_i_fits_its_capacity() {
    assert!(height(include_str!("data/I.csv"), Some(1 << 20), 3).0 <= 1 << 20);
}

#[test]
fn the_lowest_allocation_of_minimalloc_c_is_as_low_as_its_load() {
    assert_eq!(height(include_str!("data/C.csv"), None, 2), (1_039_360, 1_039_360));
}

#[test]
fn a_training_step_is_allocated_at_its_load_without_a_search() {
    assert_eq!(height(include_str!("data/resnet50.csv"), None, 0), (1_515_472_556, 1_515_472_556));
}

/// The search for the lowest allocation goes on from one allocation to the next. So it ends no higher than a
/// search within a capacity.
#[test]
fn the_lowest_allocation_of_minimalloc_d_is_lower_than_one_within_its_capacity() {
    let text = include_str!("data/D.csv");
    let (lowest, _) = height(text, None, 2);
    let (within, _) = height(text, Some(1 << 20), 2);
    assert!(lowest < within && within <= 1 << 20, "{lowest} {within}");
}
