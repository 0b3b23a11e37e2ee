//! The process's limit on open files. Every connection and every table of the database uses one.

use crate::rpc::AUTH_CONNECTIONS;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Number of files reserved for the database, the swarm and the Engine API, up to half of the
/// limit.
const OTHERS: u64 = 4096 + AUTH_CONNECTIONS as u64;

/// Raises the soft limit to the hard limit. The default soft limit is low, often 1024, for programs
/// that use `select`, which this program does not.
pub fn raise_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        Ok((soft, hard))
    });
    match raised {
        Ok((soft, hard)) if soft < hard => {
            tracing::info!(from = soft, to = hard, "raised the limit of open files")
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    }
}

/// The current soft limit.
pub fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft)
}

/// Maximum number of RPC connections at this limit on open files: all but [`OTHERS`], and at least
/// half.
pub fn connections(limit: u64) -> usize {
    usize::try_from(limit - OTHERS.min(limit / 2)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_to_the_rest_of_the_node() {
        assert_eq!(
            [512, 1024, 20_000, 1 << 20].map(connections),
            [256, 512, 14_880, (1 << 20) - 5120]
        );
        assert_eq!(connections(u64::MAX), usize::MAX - 5120);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, soft - 1, hard).unwrap();
        raise_limit();
        assert_eq!(
            (limit(), getrlimit(Resource::RLIMIT_NOFILE).unwrap().1),
            (hard, hard)
        );
    }
}
