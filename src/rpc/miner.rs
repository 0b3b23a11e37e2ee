//! The `miner` namespace: settings that op-batcher and operators change while the node runs. Over
//! TCP it is served only if an operator names it, because it changes the blocks that the node
//! builds.

use super::{
    api::{Method, Namespace},
    context::RpcContext,
    error::{Reply, RpcError, reply},
    params::{Args, Big, Quantity},
};
use starling_proto::fork::Fork;

pub const NAMESPACE: Namespace = Namespace {
    name: "miner",
    methods: &[
        ("miner_setMaxDASize", Method::Quick(set_max_da_size)),
        ("miner_setGasPrice", Method::Quick(set_gas_price)),
        ("miner_setGasLimit", Method::Quick(set_gas_limit)),
        ("miner_setExtra", Method::Quick(set_extra)),
    ],
    subscriptions: &[],
};

/// Maximum bytes of a header's extra data.
const MAX_EXTRA_DATA: usize = 32;

/// `miner_setMaxDASize`: the maximum bytes of one transaction and of one block; 0 is no limit.
fn set_max_da_size(context: &RpcContext, args: Args) -> Reply {
    let mut args = args.at_most(2)?;
    let (Big(tx), Big(block)): (Big, Big) = (args.required()?, args.required()?);
    let limit = |bytes: alloy_primitives::U256| (!bytes.is_zero()).then(|| bytes.saturating_to());
    context.chain.pool.set_miner(|settings| {
        (settings.max_tx_da, settings.max_block_da) = (limit(tx), limit(block))
    });
    reply(true)
}

/// `miner_setGasPrice`: the minimum tip, in wei per gas.
fn set_gas_price(context: &RpcContext, args: Args) -> Reply {
    let Big(tip) = args.at_most(1)?.required()?;
    context
        .chain
        .pool
        .set_miner(|settings| settings.min_tip = Some(tip.saturating_to()));
    reply(true)
}

fn set_gas_limit(context: &RpcContext, args: Args) -> Reply {
    let Quantity(gas) = args.at_most(1)?.required()?;
    context
        .chain
        .pool
        .set_miner(|settings| settings.gas_limit = Some(gas));
    reply(true)
}

/// `miner_setExtra`: sets the extra data of headers to the bytes of the string, as in geth.
fn set_extra(context: &RpcContext, args: Args) -> Reply {
    let extra: String = args.at_most(1)?.required()?;
    if extra.len() > MAX_EXTRA_DATA {
        return Err(RpcError::server(format!(
            "extra exceeds max length. {} > {MAX_EXTRA_DATA}",
            extra.len()
        )));
    }
    let view = context.view();
    let active = context.chain.spec.at(view.header().timestamp);
    if active.op.is_some() {
        tracing::warn!(
            holocene = active.is_op(Fork::Holocene),
            "miner_setExtra has no effect: the rollup node decides on the extra data of this chain's blocks"
        );
    }
    context
        .chain
        .pool
        .set_miner(|settings| settings.extra_data = extra.into_bytes().into());
    reply(true)
}
