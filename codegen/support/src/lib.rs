//! Facilities that both command lines need and that know nothing of plans.
//!
//! - [`Replace`]: writes a file as a whole or not at all.
//! - [`check_clash`]: refuses an output path that is an input or another output.
//! - [`FileKind`]: says what a file in the wrong place is.
//! - [`map`]: reads a file in place.
//! - [`gpus`], [`kept_profile`], [`builtin_profile`]: this machine's GPUs, and the profiles for them.
//! - [`printable`]: writes control characters out, before untrusted text reaches a terminal.
//! - [`exit_now`], [`write_stderr`]: for the handler of a signal.
//! - [`on_interrupt`], [`is_interrupted`]: call a handler when the process is asked to end.
//! - [`owner_socket`]: a local socket that others cannot open.
//! - [`TraceFile`]: a timeline in the JSON that Perfetto and Chrome's tracing read.
//!
//! The caller decides on messages and exit codes.

mod clash;
mod exit;
mod gpu;
mod kind;
mod map;
mod printable;
mod replace;
mod signals;
mod socket;
mod trace;

pub use clash::{PathClash, check_clash, is_same_file};
pub use exit::{exit_now, write_stderr};
pub use gpu::{builtin_profile, gpus, is_gpu_profile, kept_profile, profile_name};
pub use kind::FileKind;
pub use map::map;
pub use printable::printable;
pub use replace::{Replace, abandon, has_replaced};
pub use signals::{is_interrupted, on_interrupt};
pub use socket::owner_socket;
pub use trace::{TraceFile, TraceSpan};
