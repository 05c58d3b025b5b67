//! The target `ort_checkpoint` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("ort_checkpoint");
