//! Options of the proposer, except those of logs, metrics and servers. Error messages are
//! op-proposer's, with the names of the options.

use crate::txmgr::options::{TxOptionError, TxOptions};
use alloy_primitives::Address;
use std::time::Duration;

/// Game types whose claim is the output root of one chain (op-proposer).
const OUTPUT_ROOT_GAMES: [u32; 8] = [0, 1, 2, 3, 6, 254, 255, 1337];
/// Game types whose claim is a super root over all chains of a cluster (op-proposer).
const SUPER_ROOT_GAMES: [u32; 2] = [4, 5];

/// op-proposer's options about the content and time of proposals.
#[derive(Clone, Debug, PartialEq)]
pub struct ProposerOptions {
    /// `--rollup-rpc`: if there are several, the one with the active sequencer is used.
    pub rollup_rpc: Vec<String>,
    /// Whether outputs come from the node in this process, which counts as a rollup RPC.
    pub in_process: bool,
    /// `--supervisor-rpcs`.
    pub supervisor_rpcs: Vec<String>,
    /// `--l2oo-address`.
    pub l2oo_address: Option<Address>,
    /// `--game-factory-address`.
    pub game_factory_address: Option<Address>,
    /// `--proposal-interval`: a new game is created once our last game is older than this, by L1's
    /// clock.
    pub proposal_interval: Duration,
    /// `--game-type`.
    pub game_type: u32,
    /// `--poll-interval`.
    pub poll_interval: Duration,
    /// `--allow-non-finalized`: safe blocks are proposed, not only finalized ones.
    pub allow_non_finalized: bool,
    /// `--active-sequencer-check-duration`.
    pub active_sequencer_check_duration: Duration,
    /// `--wait-node-sync`: nothing is proposed until the rollup node has derived up to the block
    /// that was L1's head at start.
    pub wait_node_sync: bool,
    /// Options of the transaction manager. Their network timeout applies to every request.
    pub tx: TxOptions,
}

impl Default for ProposerOptions {
    /// The default values, with neither contract nor source.
    fn default() -> Self {
        Self {
            rollup_rpc: Vec::new(),
            in_process: false,
            supervisor_rpcs: Vec::new(),
            l2oo_address: None,
            game_factory_address: None,
            proposal_interval: Duration::ZERO,
            game_type: 0,
            poll_interval: Duration::from_secs(12),
            allow_non_finalized: false,
            active_sequencer_check_duration: Duration::from_secs(120),
            wait_node_sync: false,
            tx: TxOptions::default(),
        }
    }
}

/// The contract that receives the proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposalTarget {
    /// An L2OutputOracle at this address.
    Oracle(Address),
    /// A DisputeGameFactory.
    Factory {
        address: Address,
        game_type: u32,
        /// Seconds between two games of ours, by L1's clock.
        interval: u64,
    },
}

impl ProposalTarget {
    /// The contract that proposals are sent to.
    pub fn address(&self) -> Address {
        match self {
            Self::Oracle(address) | Self::Factory { address, .. } => *address,
        }
    }

    /// The option that sets the contract's address.
    pub fn option(&self) -> &'static str {
        match self {
            Self::Oracle(_) => "--l2oo-address",
            Self::Factory { .. } => "--game-factory-address",
        }
    }
}

/// The reason why the options are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProposerOptionError {
    #[error(transparent)]
    Tx(#[from] TxOptionError),
    #[error("must provide PollInterval (--poll-interval)")]
    PollInterval,
    #[error(
        "`DisputeGameFactory` is required (--game-factory-address, or --l2oo-address for an output oracle)"
    )]
    NoContract,
    #[error(
        "both the `DisputeGameFactory` and `L2OutputOracle` addresses were provided (--game-factory-address, --l2oo-address)"
    )]
    TwoContracts,
    #[error(
        "the `DisputeGameFactory` address was provided but the `ProposalInterval` was not set (--proposal-interval)"
    )]
    NoInterval,
    #[error(
        "the `ProposalInterval` was provided but the `DisputeGameFactory` address was not set (--game-factory-address)"
    )]
    NoFactory,
    #[error(
        "must specify exactly one of rollup rpc, supervisor rpc, or supernode rpc (--rollup-rpc, --supervisor-rpcs)"
    )]
    TwoSources,
    #[error("missing rollup rpc (--rollup-rpc)")]
    NoRollupRpc,
    #[error("missing supervisor rpc or supernode rpc (--supervisor-rpcs)")]
    NoSupervisorRpc,
    #[error(
        "missing proposal source rpc (rollup, supervisor, or supernode) (--rollup-rpc, --supervisor-rpcs)"
    )]
    NoSource,
}

impl ProposerOptions {
    /// Checks the options as op-proposer does, in the same order. Returns the target contract.
    pub fn target(&self) -> Result<ProposalTarget, ProposerOptionError> {
        self.tx.check()?;
        if self.poll_interval.is_zero() {
            return Err(ProposerOptionError::PollInterval);
        }
        let has_interval = !self.proposal_interval.is_zero();
        let target = match (self.game_factory_address, self.l2oo_address) {
            (None, None) => return Err(ProposerOptionError::NoContract),
            (Some(_), Some(_)) => return Err(ProposerOptionError::TwoContracts),
            (Some(_), None) if !has_interval => return Err(ProposerOptionError::NoInterval),
            (None, Some(_)) if has_interval => return Err(ProposerOptionError::NoFactory),
            (Some(address), None) => ProposalTarget::Factory {
                address,
                game_type: self.game_type,
                // L1's clock has whole seconds, so an interval below one second becomes one second.
                interval: self.proposal_interval.as_secs().max(1),
            },
            (None, Some(address)) => ProposalTarget::Oracle(address),
        };
        self.check_source(&target)?;
        Ok(target)
    }

    fn check_source(&self, target: &ProposalTarget) -> Result<(), ProposerOptionError> {
        let has_rollup = self.in_process || !self.rollup_rpc.is_empty();
        let has_supervisor = !self.supervisor_rpcs.is_empty();
        let (needs_rollup, needs_supervisor) = match target {
            // An oracle accepts output roots of one chain only, no super roots.
            ProposalTarget::Oracle(_) => (true, false),
            ProposalTarget::Factory { game_type, .. } => (
                OUTPUT_ROOT_GAMES.contains(game_type),
                SUPER_ROOT_GAMES.contains(game_type),
            ),
        };
        if has_rollup && has_supervisor {
            Err(ProposerOptionError::TwoSources)
        } else if needs_rollup && !has_rollup {
            Err(ProposerOptionError::NoRollupRpc)
        } else if needs_supervisor && !has_supervisor {
            Err(ProposerOptionError::NoSupervisorRpc)
        } else if !has_rollup && !has_supervisor {
            Err(ProposerOptionError::NoSource)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: Address = Address::repeat_byte(0xde);

    fn oracle() -> ProposerOptions {
        ProposerOptions {
            rollup_rpc: vec!["http://127.0.0.1:9545".into()],
            l2oo_address: Some(CONTRACT),
            ..ProposerOptions::default()
        }
    }

    fn factory() -> ProposerOptions {
        ProposerOptions {
            l2oo_address: None,
            game_factory_address: Some(CONTRACT),
            proposal_interval: Duration::from_secs(3_600),
            ..oracle()
        }
    }

    #[test]
    fn an_oracle_and_a_factory_are_targets() {
        assert_eq!(oracle().target(), Ok(ProposalTarget::Oracle(CONTRACT)));
        let options = ProposerOptions {
            game_type: 1,
            ..factory()
        };
        let target = ProposalTarget::Factory {
            address: CONTRACT,
            game_type: 1,
            interval: 3_600,
        };
        assert_eq!(options.target(), Ok(target));
    }

    #[test]
    fn super_roots_need_supervisors_and_unknown_games_take_any_source() {
        let supervised = |game_type| ProposerOptions {
            game_type,
            rollup_rpc: vec![],
            supervisor_rpcs: vec!["http://127.0.0.1:9100".into()],
            ..factory()
        };
        for game_type in [4, 5, 77] {
            assert!(supervised(game_type).target().is_ok(), "{game_type}");
        }
        for game_type in OUTPUT_ROOT_GAMES {
            let target = supervised(game_type).target();
            assert_eq!(target, Err(ProposerOptionError::NoRollupRpc), "{game_type}");
        }
        let in_process = ProposerOptions {
            rollup_rpc: vec![],
            in_process: true,
            ..factory()
        };
        assert!(in_process.target().is_ok());
    }

    /// A change of a factory's options, and the beginning of the expected error.
    type Wrong = (fn(&mut ProposerOptions), &'static str);

    const WRONG: [Wrong; 11] = [
        (
            |o| o.tx.num_confirmations = 0,
            "NumConfirmations must not be 0",
        ),
        (
            |o| o.poll_interval = Duration::ZERO,
            "must provide PollInterval",
        ),
        (
            |o| o.game_factory_address = None,
            "`DisputeGameFactory` is required",
        ),
        (
            |o| o.l2oo_address = Some(CONTRACT),
            "both the `DisputeGameFactory` and `L2OutputOracle` addresses were provided",
        ),
        (
            |o| o.proposal_interval = Duration::ZERO,
            "the `DisputeGameFactory` address was provided but the `ProposalInterval` was not set",
        ),
        (
            |o| (o.l2oo_address, o.game_factory_address) = (Some(CONTRACT), None),
            "the `ProposalInterval` was provided but the `DisputeGameFactory` address was not set",
        ),
        (
            |o| o.supervisor_rpcs = vec!["http://127.0.0.1:9100".into()],
            "must specify exactly one of rollup rpc, supervisor rpc, or supernode rpc",
        ),
        (|o| o.rollup_rpc = vec![], "missing rollup rpc"),
        (
            |o| o.game_type = 4,
            "missing supervisor rpc or supernode rpc",
        ),
        (
            |o| (o.game_type, o.rollup_rpc) = (77, vec![]),
            "missing proposal source rpc (rollup, supervisor, or supernode)",
        ),
        (
            |o| (o.game_type, o.in_process, o.supervisor_rpcs) = (5, true, vec!["x".into()]),
            "must specify exactly one of rollup rpc, supervisor rpc, or supernode rpc",
        ),
    ];

    #[test]
    fn each_wrong_option_has_op_proposers_sentence() {
        for (change, expected) in WRONG {
            let mut options = factory();
            change(&mut options);
            let said = options.target().unwrap_err().to_string();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
