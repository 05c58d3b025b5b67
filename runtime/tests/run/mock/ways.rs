//! Ways of the mock's libraries: three for every call, which compute the same.

use memc_gpu::{
    Arch, Component, Driver, GpuError, LibraryCall, LibraryOp, LibraryOptions, LibraryWay, Offer, Setting,
    Ways,
};

use super::Mock;

const WAYS: u8 = 3;

fn way(call: &LibraryCall, number: u8) -> LibraryWay {
    match call {
        LibraryCall::Product(_) => LibraryWay::Product(Box::new([number; 64])),
        LibraryCall::Convolution(_) => LibraryWay::Convolution { algorithm: number.into(), math: 3 },
    }
}

impl Ways for Mock {
    fn ways(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Offer>, GpuError> {
        let count = if self.behaviour.has_libraries { WAYS } else { 0 };
        let offer = |number| Offer { way: way(call, number), workspace: workspace / 2 };
        Ok((0..count).map(offer).collect())
    }

    fn plan_way(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        kept: &LibraryWay,
    ) -> Result<Option<LibraryOp>, GpuError> {
        if !(0..WAYS).any(|number| way(call, number) == *kept) {
            return Ok(None);
        }
        self.plan_library(call, workspace)
    }

    fn setting(&self) -> Setting {
        let version = if self.behaviour.has_newer { "2.0.0" } else { "1.0.0" };
        let count = if self.behaviour.has_libraries { 2 } else { 0 };
        let libraries = [Component::CublasLt, Component::Cudnn].into_iter().take(count);
        Setting {
            device: "Mock GPU".to_owned(),
            arch: Arch { major: 9, minor: 0 },
            libraries: libraries.map(|component| (component, version.to_owned())).collect(),
            options: LibraryOptions::default(),
        }
    }
}
