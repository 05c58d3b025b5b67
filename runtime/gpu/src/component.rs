//! The libraries that a GPU program can use: files, versions, and the advice where one is missing.

/// A library that a GPU program can use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Component {
    /// The driver, without which there is no device.
    Driver,
    /// The compiler of kernels.
    Nvrtc,
    /// Matrix products.
    CublasLt,
    /// Convolutions.
    Cudnn,
}

impl Component {
    /// All of them, in the order in which they may be opened: each after those it needs.
    pub const ALL: [Component; 4] =
        [Component::Driver, Component::Nvrtc, Component::CublasLt, Component::Cudnn];

    /// Name for humans.
    pub fn name(self) -> &'static str {
        match self {
            Component::Driver => "driver",
            Component::Nvrtc => "NVRTC",
            Component::CublasLt => "cuBLASLt",
            Component::Cudnn => "cuDNN",
        }
    }

    /// Name of the library file, without a version.
    pub fn library(self) -> &'static str {
        self.files()[0]
    }

    /// Names of the file, in the order in which the bindings try them.
    pub(crate) fn files(self) -> &'static [&'static str] {
        match self {
            Component::Driver => &["libcuda.so", "libcuda.so.1"],
            Component::Nvrtc => &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"],
            Component::CublasLt => &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"],
            Component::Cudnn => &["libcudnn.so", "libcudnn.so.9"],
        }
    }

    /// The oldest version that can be used, the first number of it.
    pub fn oldest(self) -> u32 {
        match self {
            Component::Driver | Component::Nvrtc | Component::CublasLt => 12,
            Component::Cudnn => 9,
        }
    }

    /// Behaviour of a program without it.
    pub fn absence(self) -> &'static str {
        match self {
            Component::Driver => "no program runs on a GPU",
            Component::Nvrtc => "kernels cannot be compiled: no program runs on a GPU",
            Component::CublasLt => "matrix products run as generated kernels, which are slower",
            Component::Cudnn => "convolutions run as generated kernels, which are slower",
        }
    }

    /// Package that brings it.
    pub fn remedy(self) -> &'static str {
        match self {
            Component::Driver => "install NVIDIA's driver, or pass it into the container",
            Component::Nvrtc => {
                "install the Python wheel nvidia-cuda-nvrtc, or name its folder in MEMRUN_CUDA_LIBS"
            }
            Component::CublasLt => {
                "install the Python wheel nvidia-cublas, or name its folder in MEMRUN_CUDA_LIBS"
            }
            Component::Cudnn => {
                "install the Python wheel nvidia-cudnn-cu13, or name its folder in MEMRUN_CUDA_LIBS"
            }
        }
    }
}
