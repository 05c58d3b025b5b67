//! The target `options` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("options");
