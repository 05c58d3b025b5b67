//! The target `npy` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("npy");
