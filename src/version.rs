//! Version of the program, set by the build script.

/// Version shown by `--version` and `web3_clientVersion`: the package's version, followed by the
/// commit in a release build.
pub const VERSION: &str = env!("STARLING_VERSION");
/// Eight hex digits of the commit; zeros if it is unknown.
pub const COMMIT: &str = env!("STARLING_COMMIT");
