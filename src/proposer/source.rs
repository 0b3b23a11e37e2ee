//! The roots that are proposed: output roots from a rollup node, or from the node in this process,
//! and super roots from supervisors.

mod supervisor;

pub use supervisor::Supervisors;

use super::schedule::{Proposal, SourceReading};
use crate::{
    l2_source::{L2Source, L2SourceError},
    rollup::l1::RpcCause,
};
use starling_proto::l1info::L2BlockRef;

/// The reason why there is no proposal.
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

/// The party that computes the roots.
#[derive(Clone)]
pub enum ProposalSource {
    /// Output roots of one chain.
    Rollup(L2Source),
    /// Super roots.
    Supervisors(Supervisors),
}

impl From<L2Source> for ProposalSource {
    fn from(source: L2Source) -> Self {
        Self::Rollup(source)
    }
}

/// A proposal, and the block whose output it is, if it is that of one chain.
#[derive(Clone, Debug)]
pub struct SourcedProposal {
    pub proposal: Proposal,
    pub block: Option<L2BlockRef>,
}

impl ProposalSource {
    /// The safe and the final head now.
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

    /// The proposal for a sequence number, beside the L1 block of an earlier reading of the heads.
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
