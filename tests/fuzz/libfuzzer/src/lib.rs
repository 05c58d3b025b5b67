//! Entry points of a libFuzzer program for a target: its run, and its changes of inputs beside those of
//! libFuzzer.

pub use libfuzzer_sys;
pub use memc_fuzz;

/// Changes the first `size` bytes of `data`: by the target every second time, else as libFuzzer does.
pub fn mutate(target: &memc_fuzz::Target, data: &mut [u8], size: usize, most: usize, seed: u32) -> usize {
    if seed % 2 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, most);
    }
    let seeds = [data[..size].to_vec()];
    let mutant = target.mutant(&seeds, seed.into());
    let size = mutant.len().min(most).min(data.len());
    data[..size].copy_from_slice(&mutant[..size]);
    size
}

/// Entry points of a fuzzer for the target of this name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        use $crate::libfuzzer_sys;

        fn target() -> &'static $crate::memc_fuzz::Target {
            $crate::memc_fuzz::Target::named($name).expect("the target exists")
        }

        libfuzzer_sys::fuzz_target!(|data: &[u8]| (target().run)(data));
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| {
            $crate::mutate(target(), data, size, most, seed)
        });
    };
}
