//! Changes that the lab makes on L1: reorgs, and a new block signer. The verbs `reorg` and `new-key`
//! call it. It reads at most 17 blocks and sends one transaction for each change, and gives a busy
//! L1 two minutes for each response.

use super::{
    account::LabAccount,
    error::LabError,
    load::FEE,
    network::LabNode,
    rpc::{self, LabBlock},
    scenario::{LabScenario, LabVerb, NodeVerb},
};
use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, TxKind, keccak256};
use serde_json::json;
use std::{net::SocketAddr, time::Duration};

/// Time limit of a change: some L1 blocks, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(120);
/// Number of blocks below the head of L1 in which the fork point is searched: twice what a reorg
/// replaces.
const BRANCH: u64 = 16;
/// Gas of a call that writes one slot and a log.
const GAS: u64 = 200_000;

fn failed(reason: impl Into<String>) -> LabError {
    LabError::L1 {
        reason: reason.into(),
    }
}

/// The newest blocks of L1, to find the fork point of a reorg.
pub async fn branch(l1: SocketAddr) -> Result<Vec<LabBlock>, LabError> {
    let silent = || failed("it does not respond");
    let read = async |number| rpc::read_until_some(LIMIT, || rpc::block(l1, number)).await;
    let head = read(None).await.ok_or_else(silent)?;
    let mut blocks = vec![head];
    for number in (head.number.saturating_sub(BRANCH)..head.number).rev() {
        blocks.push(read(Some(number)).await.ok_or_else(silent)?);
    }
    Ok(blocks)
}

/// Number of the newest of these blocks that L1 still has. Returns when L1 has another block above
/// it.
pub async fn fork_point(l1: SocketAddr, branch: &[LabBlock]) -> Result<u64, LabError> {
    for block in branch {
        // Only a response says that L1 has another block or none: silence says nothing.
        let now = rpc::read_until_some(LIMIT, || rpc::lookup(l1, block.number)).await;
        let now = now.ok_or_else(|| failed("it does not respond"))?;
        if now.is_some_and(|now| now.hash == block.hash) {
            let above = Some(block.number + 1);
            wait("a block of the other branch", || rpc::block(l1, above)).await?;
            return Ok(block.number);
        }
    }
    Err(failed(
        "none of its blocks is one of the newest before the reorg, so its data were not those of the \
         snapshot",
    ))
}

/// The contract with the block signer, and the account that may change it.
pub struct SignerContract<'a> {
    /// Chain id of L1.
    pub chain_id: u64,
    pub address: Address,
    pub owner: &'a LabAccount,
}

impl SignerContract<'_> {
    /// Names a new block signer on L1. Returns when the transaction is in a block.
    pub async fn set_signer(&self, l1: SocketAddr, signer: Address) -> Result<(), LabError> {
        let owner = self.owner.address;
        let pending = json!([owner, "pending"]);
        let nonce = || rpc::call(l1, "eth_getTransactionCount", pending.clone());
        let nonce = rpc::read_until_some(LIMIT, nonce).await;
        let nonce = nonce.as_ref().and_then(rpc::quantity);
        let mut input = keccak256("setUnsafeBlockSigner(address)")[..4].to_vec();
        input.extend(signer.into_word());
        let raw = self.owner.sign(TxEip1559 {
            chain_id: self.chain_id,
            nonce: nonce.ok_or_else(|| failed("it does not respond"))?,
            gas_limit: GAS,
            max_fee_per_gas: FEE,
            max_priority_fee_per_gas: 1_000_000,
            to: TxKind::Call(self.address),
            input: input.into(),
            ..Default::default()
        });
        let sent = rpc::try_call(l1, "eth_sendRawTransaction", json!([raw])).await;
        let hash =
            sent.map_err(|reason| failed(format!("the new signer is not accepted: {reason}")))?;
        let receipt = || rpc::call(l1, "eth_getTransactionReceipt", json!([hash]));
        let receipt = wait("the receipt of the new signer", receipt).await?;
        if receipt["status"] == "0x1" {
            return Ok(());
        }
        Err(failed("the SystemConfig contract refuses the new signer"))
    }
}

/// Waits for a value.
async fn wait<T, F: Future<Output = Option<T>>>(
    what: &str,
    read: impl Fn() -> F,
) -> Result<T, LabError> {
    let seconds = LIMIT.as_secs();
    let missing = || failed(format!("{what} did not appear within {seconds} s"));
    rpc::read_until_some(LIMIT, read).await.ok_or_else(missing)
}

/// Gives nodes the options that the scenario's new signers need.
pub fn prepare(nodes: &mut [LabNode], scenario: &LabScenario) {
    let mut steps = scenario.steps.iter();
    if steps.any(|step| matches!(step.verb, LabVerb::Nodes(NodeVerb::NewKey, _))) {
        for node in nodes.iter_mut().filter(|node| node.role.is_l2()) {
            // Nodes read the signer every ten minutes by default, which no run lasts.
            let option = "--l1.runtime-config-reload-interval=1s".to_owned();
            node.process.args.push(option);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::B256;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    fn block(number: u64, branch: u8) -> LabBlock {
        let hash = |number: u64| B256::with_last_byte(number as u8 * 16 + branch);
        LabBlock {
            number,
            hash: hash(number),
            parent: hash(number.saturating_sub(1)),
        }
    }

    fn json(block: Option<LabBlock>) -> serde_json::Value {
        block.map_or(serde_json::Value::Null, |it| {
            let number = format!("{:#x}", it.number);
            json!({"number": number, "hash": it.hash.to_string(), "parentHash": it.parent.to_string()})
        })
    }

    /// An L1 that gives these responses in turn; `None` for none.
    async fn l1(responses: Vec<Option<serde_json::Value>>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            for response in responses {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4_096]).await;
                if let Some(result) = response {
                    let body = json!({"jsonrpc": "2.0", "id": 1, "result": result});
                    let response = format!("HTTP/1.0 200 OK\r\n\r\n{body}");
                    stream.write_all(response.as_bytes()).await.unwrap();
                }
            }
        });
        address
    }

    /// Block 3 is gone, block 2 is another one, and L1 does not respond to the first request for
    /// block 1, which both branches have.
    #[tokio::test]
    async fn a_request_without_a_response_is_no_other_block() {
        let responses = vec![
            Some(json(None)),
            Some(json(Some(block(2, 1)))),
            None,
            Some(json(Some(block(1, 0)))),
            Some(json(Some(block(2, 1)))),
        ];
        let l1 = l1(responses).await;
        let branch = [3, 2, 1, 0].map(|number| block(number, 0));
        assert_eq!(fork_point(l1, &branch).await.unwrap(), 1);
    }
}
