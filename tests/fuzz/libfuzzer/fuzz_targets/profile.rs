//! The target `profile` for libFuzzer.
#![no_main]

memc_libfuzzer::target!("profile");
