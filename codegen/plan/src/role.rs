//! Names of queues and roles.

use std::{error, fmt, str::FromStr};

use memc_ir::{OutputRole, Role, Space, Stream};

use crate::{Queue, StateRole};

impl Queue {
    /// The stream of kernels.
    pub const COMPUTE: Queue = Queue::Device(Stream::Compute);
    /// The stream of copies from the device to the host.
    pub const D2H: Queue = Queue::Device(Stream::DeviceToHost);
    /// The stream of copies from the host to the device.
    pub const H2D: Queue = Queue::Device(Stream::HostToDevice);
    /// The stream of kernels on the host.
    pub const CPU: Queue = Queue::Device(Stream::HostCompute);
    /// All queues, by index: those of streams as [`Stream::ALL`], and the host's.
    pub const ALL: [Queue; 5] = [Queue::COMPUTE, Queue::D2H, Queue::H2D, Queue::CPU, Queue::Host];

    /// Position in [`Queue::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Queue::Device(stream) => stream as usize,
            Queue::Host => Stream::ALL.len(),
        }
    }

    /// The arena whose bytes kernels of the queue read and write; `None` where no kernels run.
    pub const fn kernels_in(self) -> Option<Space> {
        match self {
            Queue::COMPUTE => Some(Space::Dev),
            Queue::CPU => Some(Space::Host),
            Queue::D2H | Queue::H2D | Queue::Host => None,
        }
    }

    /// The stream, or `None` for the host.
    pub const fn stream(self) -> Option<Stream> {
        match self {
            Queue::Device(stream) => Some(stream),
            Queue::Host => None,
        }
    }

    /// Name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Queue::Device(stream) => stream.name(),
            Queue::Host => "host",
        }
    }
}

impl StateRole {
    /// Name in the text form and in files.
    pub fn name(self) -> &'static str {
        match self {
            StateRole::Const => "const",
            StateRole::Variable(role) => role.name(),
        }
    }
}

/// Name of a role that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRole {
    name: String,
    expected: String,
}

impl UnknownRole {
    fn new(name: &str, expected: impl IntoIterator<Item = &'static str>) -> UnknownRole {
        let expected = expected.into_iter().collect::<Vec<_>>().join(", ");
        UnknownRole { name: name.to_owned(), expected }
    }
}

impl fmt::Display for UnknownRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "role `{}` is not one of {}", self.name, self.expected)
    }
}

impl error::Error for UnknownRole {}

impl FromStr for StateRole {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<StateRole, UnknownRole> {
        let roles = || Role::ALL.map(StateRole::Variable).into_iter().chain([StateRole::Const]);
        let role = roles().find(|role| role.name() == name);
        role.ok_or_else(|| UnknownRole::new(name, roles().map(StateRole::name)))
    }
}

/// The role of an output with this name.
///
/// # Errors
/// [`UnknownRole`] if there is none.
pub fn output_role(name: &str) -> Result<OutputRole, UnknownRole> {
    let role = OutputRole::ALL.into_iter().find(|role| role.name() == name);
    role.ok_or_else(|| UnknownRole::new(name, OutputRole::ALL.map(OutputRole::name)))
}
