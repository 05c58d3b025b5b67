//! The target `problem` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("problem");
