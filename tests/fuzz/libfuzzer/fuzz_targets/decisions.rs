//! The target `decisions` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("decisions");
