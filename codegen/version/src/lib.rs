//! Version of memc and memrun, with the commit that they are built from.

/// `0.1.0 (0123456789ab)`, or `0.1.0` where the sources name no commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), env!("COMMIT"));
