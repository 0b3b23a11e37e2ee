//! The version of the program, as the build script found it.

/// Version, as `--version` and `web3_clientVersion` show it: that of the package, and of a release
/// the commit.
pub const VERSION: &str = env!("STARLING_VERSION");
/// Eight hex digits of the commit; zeros if it is unknown.
pub const COMMIT: &str = env!("STARLING_COMMIT");
