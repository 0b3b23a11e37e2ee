//! The version of the program, as the build script found it.

/// Version, as `--version` and `web3_clientVersion` show it: the package's, followed by the commit
/// in a release build.
pub const VERSION: &str = env!("STARLING_VERSION");
/// Eight hex digits of the commit; zeros if it is unknown.
pub const COMMIT: &str = env!("STARLING_COMMIT");
