//! The target `plan` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("plan");
