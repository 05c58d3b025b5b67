//! The target `module` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("module");
