//! The target `layout` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("layout");
