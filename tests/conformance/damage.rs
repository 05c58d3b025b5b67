//! Damaged node tests: whatever a model's bytes say, importing it gives a sound module or an error.

use std::collections::BTreeMap;

use memc_frontend::{Binding, import_bound, interface, read_tensor};
use memc_ir::verify;

use crate::archive::Test;

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// Imports `times` damaged copies of a test's model, with damaged copies of its inputs as constants or types,
/// and returns how many were accepted.
pub(crate) fn import_damaged(test: &Test, seed: u64, times: usize) -> usize {
    if !test.left_out.is_empty() {
        return 0;
    }
    let mut rng = Rng(seed);
    let mut accepted = 0;
    for _ in 0..times {
        let model = damaged(&mut rng, test.model());
        let names = interface(test.model()).map(|(names, _)| names).unwrap_or_default();
        let mut bindings = BTreeMap::new();
        for (name, bytes) in names.into_iter().zip(test.tensors("input")) {
            let bytes = if rng.below(4) == 0 { damaged(&mut rng, bytes) } else { bytes.to_vec() };
            let Ok((ty, data)) = read_tensor(&bytes) else { continue };
            let constant = if ty.dtype.is_float() { rng.below(8) == 0 } else { rng.below(2) == 0 };
            bindings.insert(name, if constant { Binding::Constant(ty, data) } else { Binding::Fed(ty) });
        }
        if let Ok(import) = import_bound(&model, &bindings) {
            assert_eq!(verify(&import.module), Ok(()), "{}", test.name);
            accepted += 1;
        }
    }
    accepted
}

/// `bytes` with one of them changed to a neighbour, an extreme, or anything.
fn damaged(rng: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let at = rng.below(bytes.len());
    if let Some(b) = bytes.get_mut(at) {
        *b = match rng.below(5) {
            0 => b.wrapping_add(1),
            1 => b.wrapping_sub(1),
            2 => 0,
            3 => 0x7f,
            _ => rng.below(256) as u8,
        };
    }
    bytes
}
