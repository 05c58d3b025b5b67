//! The libraries that a GPU program can use: files, versions, and the advice where one is missing.

use crate::locate::VARIABLE;

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

    /// Advice on what brings it; `cuda` is the major version of CUDA that the driver supports, where that is
    /// known. Libraries of a newer major version do not work with a driver.
    pub fn remedy(self, cuda: Option<u32>) -> String {
        let is_old = cuda.is_some_and(|cuda| cuda < 13);
        let wheel = match self {
            Component::Driver => return "install NVIDIA's driver, or pass it into the container".to_owned(),
            Component::Nvrtc if is_old => "nvidia-cuda-nvrtc-cu12",
            Component::Nvrtc => "nvidia-cuda-nvrtc",
            Component::CublasLt if is_old => "nvidia-cublas-cu12",
            Component::CublasLt => "nvidia-cublas",
            Component::Cudnn if is_old => "nvidia-cudnn-cu12",
            Component::Cudnn => "nvidia-cudnn-cu13",
        };
        format!("install the Python wheel {wheel}, or name the library's folder in {VARIABLE}")
    }

    /// Libraries that the file needs and opens by itself when a function is first called. cuDNN's file is a
    /// dispatcher, and it aborts the process where one of these does not open.
    pub(crate) fn parts(self) -> &'static [&'static str] {
        match self {
            Component::Cudnn => &["libcudnn_graph.so.9", "libcudnn_ops.so.9", "libcudnn_cnn.so.9"],
            _ => &[],
        }
    }
}
