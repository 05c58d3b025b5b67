//! Cutting a program's kernels into texts that are compiled, and kept, one by one.
//!
//! Plans of one model for several budgets differ in a few kernels. Texts that have none of these are compiled
//! once for all of the plans. A text costs about as much by itself as six kernels, so that there are few.

use std::collections::BTreeSet;

use memc_cuda::Kernel;

/// Texts of a program.
const TEXTS: usize = 8;
/// Kernels up to which a program is one text.
const FEW: usize = 24;

/// The texts of these kernels, each kernel in one of them, by its name and source alone.
pub(super) fn texts<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> Vec<String> {
    let mut named = BTreeSet::new();
    let distinct: Vec<&Kernel> = kernels.filter(|kernel| named.insert(&*kernel.name)).collect();
    let parts = if distinct.len() > FEW { TEXTS } else { 1 };
    let mut texts = vec![Vec::new(); parts];
    for kernel in distinct {
        texts.get_mut(hash(kernel) % parts).into_iter().for_each(|text| text.push(kernel));
    }
    texts.into_iter().filter(|text| !text.is_empty()).map(memc_cuda::program).collect()
}

/// FNV-1a of name and source.
fn hash(kernel: &Kernel) -> usize {
    let bytes = kernel.name.bytes().chain(kernel.source.bytes());
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // The upper bits are the better ones.
    (hash >> 40) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel is in one text; a further one changes one text alone.
    #[test]
    fn a_further_kernel_changes_one_text() {
        let kernel = |n: usize| {
            let op = memc_ir::parse_op("neg", "").unwrap();
            let ty = memc_ir::parse_type("f32[7]").unwrap();
            let lowering = memc_cuda::lower(&op, &[ty]).unwrap();
            let kernel = &lowering.launches[0].kernel;
            let name = format!("{}_{n}", kernel.name);
            let source = kernel.source.replace(&kernel.name, &name);
            Kernel { name, source }
        };
        let kernels: Vec<Kernel> = (0..100).map(kernel).collect();
        let count = |texts: &[String]| texts.iter().map(|t| t.matches("__global__").count()).sum::<usize>();
        let (some, all) = (texts(kernels[..99].iter()), texts(kernels.iter().chain(&kernels)));
        assert_eq!((count(&some), count(&all), some.len(), all.len()), (99, 100, TEXTS, TEXTS));
        assert_eq!(some.iter().zip(&all).filter(|(a, b)| a != b).count(), 1);
        assert_eq!(texts(kernels[..FEW].iter()).len(), 1);
        assert!(texts(std::iter::empty()).is_empty());
    }
}
