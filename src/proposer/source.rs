//! The sources of proposals: output roots come from a rollup node or from the node in this process,
//! super roots from supervisors.

mod supervisor;

pub use supervisor::Supervisors;

use super::schedule::{Proposal, SourceReading};
use crate::{
    l2_source::{L2Source, L2SourceError},
    rollup::l1::RpcCause,
};
use starling_proto::l1info::L2BlockRef;

/// The reason why a source returns no proposal.
#[derive(Debug, thiserror::Error)]
pub enum ProposalSourceError {
    #[error(transparent)]
    L2(#[from] L2SourceError),
    #[error("the rollup node has derived nothing yet")]
    NotDerived,
    #[error("no available proposal sources: {0}")]
    NoSupervisor(String),
    #[error("{name}: {cause}")]
    Wrong { name: String, cause: RpcCause },
}

/// The source of the roots to propose.
#[derive(Clone)]
pub enum ProposalSource {
    /// A rollup node, for output roots of one chain.
    Rollup(L2Source),
    /// Supervisors, for super roots.
    Supervisors(Supervisors),
}

impl From<L2Source> for ProposalSource {
    fn from(source: L2Source) -> Self {
        Self::Rollup(source)
    }
}

/// A proposal with the block of its output root; super roots have no block.
#[derive(Clone, Debug)]
pub struct SourcedProposal {
    pub proposal: Proposal,
    pub block: Option<L2BlockRef>,
}

impl ProposalSource {
    /// Reads the current safe and finalized heads.
    pub async fn heads(&self) -> Result<SourceReading, ProposalSourceError> {
        let source = match self {
            Self::Rollup(source) => source,
            Self::Supervisors(supervisors) => return supervisors.heads().await,
        };
        let heads = source.heads().await?;
        let current = heads.current_l1.ok_or(ProposalSourceError::NotDerived)?;
        let number = |block: Option<L2BlockRef>| block.map_or(0, |block| block.id.number);
        Ok(SourceReading {
            current_l1: current.id,
            head_l1: heads
                .head_l1
                .map_or(current.id.number, |head| head.id.number),
            safe: number(heads.safe_l2),
            finalized: number(heads.finalized_l2),
        })
    }

    /// Reads the proposal for a sequence number. The L1 block of an output is that of `heads`, an
    /// earlier reading.
    pub async fn proposal_at(
        &self,
        sequence: u64,
        heads: &SourceReading,
    ) -> Result<SourcedProposal, ProposalSourceError> {
        match self {
            Self::Rollup(source) => {
                let output = source.output_at(sequence).await?;
                Ok(SourcedProposal {
                    proposal: Proposal::of_output(sequence, output.root, heads.current_l1),
                    block: Some(output.block),
                })
            }
            Self::Supervisors(supervisors) => {
                let proposal = supervisors.super_root(sequence).await?;
                Ok(SourcedProposal {
                    proposal,
                    block: None,
                })
            }
        }
    }
}
