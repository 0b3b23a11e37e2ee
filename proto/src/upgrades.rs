//! Upgrade transactions: the deposits that the first block of a fork carries to install the fork's
//! contracts (specs: each fork's derivation page).
//!
//! The bytecode under `upgrades/` is published with the specifications (`specs/static/bytecode`)
//! and, identically, in kona's hardforks crate (MIT). `karst.rlp` is the monorepo's
//! `op-core/nuts/bundles/karst_nut_bundle.json` (MIT) as an RLP list of `[intent, from, to, gas,
//! data]`. The tests compare all of this with published transactions and hashes.

use crate::{
    deposit::upgrade_source_hash,
    fork::Fork,
    l1info::{DEPOSITOR, L1_BLOCK},
};
use alloy_primitives::{Address, Bytes, TxKind, U256, address, hex};
use alloy_rlp::{Decodable, RlpDecodable};
use op_alloy_consensus::TxDeposit;

const GAS_PRICE_ORACLE: Address = address!("420000000000000000000000000000000000000F");
const OPERATOR_FEE_VAULT: Address = address!("420000000000000000000000000000000000001B");

/// `upgradeTo(address)` of the predeploys' proxies.
const UPGRADE_TO: [u8; 4] = hex!("3659cfe6");

/// The upgrade transactions of a fork, in block order; empty for most forks.
pub fn upgrade_transactions(fork: Fork) -> Vec<TxDeposit> {
    match fork {
        Fork::Ecotone => ecotone(),
        Fork::Fjord => fjord(),
        Fork::Isthmus => isthmus(),
        Fork::Jovian => jovian(),
        Fork::Karst => karst(),
        Fork::Bedrock
        | Fork::Regolith
        | Fork::Canyon
        | Fork::Delta
        | Fork::Granite
        | Fork::Holocene => vec![],
    }
}

fn ecotone() -> Vec<TxDeposit> {
    vec![
        deploy(
            "Ecotone: L1 Block Deployment",
            deployer(0),
            375_000,
            include_bytes!("upgrades/ecotone-l1-block.bin"),
        ),
        deploy(
            "Ecotone: Gas Price Oracle Deployment",
            deployer(1),
            1_000_000,
            include_bytes!("upgrades/ecotone-gas-price-oracle.bin"),
        ),
        upgrade(
            "Ecotone: L1 Block Proxy Update",
            L1_BLOCK,
            address!("07dbe8500fc591d1852b76fee44d5a05e13097ff"),
        ),
        upgrade(
            "Ecotone: Gas Price Oracle Proxy Update",
            GAS_PRICE_ORACLE,
            address!("b528d11cc114e026f138fe568744c6d45ce6da7a"),
        ),
        enable(
            "Ecotone: Gas Price Oracle Set Ecotone",
            80_000,
            hex!("22b90ab3"),
        ),
        deploy(
            "Ecotone: beacon block roots contract deployment",
            address!("0B799C86a49DEeb90402691F1041aa3AF2d3C875"),
            250_000,
            include_bytes!("upgrades/ecotone-beacon-roots.bin"),
        ),
    ]
}

fn fjord() -> Vec<TxDeposit> {
    vec![
        deploy(
            "Fjord: Gas Price Oracle Deployment",
            deployer(2),
            1_450_000,
            include_bytes!("upgrades/fjord-gas-price-oracle.bin"),
        ),
        upgrade(
            "Fjord: Gas Price Oracle Proxy Update",
            GAS_PRICE_ORACLE,
            address!("a919894851548179a0750865e7974da599c0fac7"),
        ),
        enable(
            "Fjord: Gas Price Oracle Set Fjord",
            90_000,
            hex!("8e98b106"),
        ),
    ]
}

fn isthmus() -> Vec<TxDeposit> {
    vec![
        deploy(
            "Isthmus: L1 Block Deployment",
            deployer(3),
            425_000,
            include_bytes!("upgrades/isthmus-l1-block.bin"),
        ),
        deploy(
            "Isthmus: Gas Price Oracle Deployment",
            deployer(4),
            1_625_000,
            include_bytes!("upgrades/isthmus-gas-price-oracle.bin"),
        ),
        deploy(
            "Isthmus: Operator Fee Vault Deployment",
            deployer(5),
            500_000,
            include_bytes!("upgrades/isthmus-operator-fee-vault.bin"),
        ),
        upgrade(
            "Isthmus: L1 Block Proxy Update",
            L1_BLOCK,
            address!("ff256497d61dcd71a9e9ff43967c13fde1f72d12"),
        ),
        upgrade(
            "Isthmus: Gas Price Oracle Proxy Update",
            GAS_PRICE_ORACLE,
            address!("93e57a196454cb919193fa9946f14943cf733845"),
        ),
        upgrade(
            "Isthmus: Operator Fee Vault Proxy Update",
            OPERATOR_FEE_VAULT,
            address!("4fa2be8cd41504037f1838bce3bcc93bc68ff537"),
        ),
        enable(
            "Isthmus: Gas Price Oracle Set Isthmus",
            90_000,
            hex!("291b0383"),
        ),
        deploy(
            "Isthmus: EIP-2935 Contract Deployment",
            address!("3462413Af4609098e1E27A490f554f260213D685"),
            250_000,
            include_bytes!("upgrades/isthmus-block-hash-history.bin"),
        ),
    ]
}

fn jovian() -> Vec<TxDeposit> {
    vec![
        deploy(
            "Jovian: L1 Block Deployment",
            deployer(6),
            447_315,
            include_bytes!("upgrades/jovian-l1-block.bin"),
        ),
        upgrade(
            "Jovian: L1 Block Proxy Update",
            L1_BLOCK,
            address!("3Ba4007f5C922FBb33C454B41ea7a1f11E83df2C"),
        ),
        deploy(
            "Jovian: Gas Price Oracle Deployment",
            deployer(7),
            1_750_714,
            include_bytes!("upgrades/jovian-gas-price-oracle.bin"),
        ),
        upgrade(
            "Jovian: Gas Price Oracle Proxy Update",
            GAS_PRICE_ORACLE,
            address!("4f1db3c6AbD250ba86E0928471A8F7DB3AFd88F1"),
        ),
        enable(
            "Jovian: Gas Price Oracle Set Jovian",
            90_000,
            hex!("b3d72079"),
        ),
    ]
}

/// One transaction of an upgrade bundle, with the fields of the file.
#[derive(RlpDecodable)]
struct Bundled {
    intent: String,
    from: Address,
    to: TxKind,
    gas: u64,
    data: Bytes,
}

fn karst() -> Vec<TxDeposit> {
    let mut file: &[u8] = include_bytes!("upgrades/karst.rlp");
    // Cannot fail: the file is part of the program, and a test decodes all of it.
    let bundle = Vec::<Bundled>::decode(&mut file).expect("the bundle is well-formed");
    let deposit = |(i, tx): (usize, Bundled)| {
        let intent = format!("Karst {i}: {}", tx.intent);
        TxDeposit {
            to: tx.to,
            input: tx.data,
            ..empty(&intent, tx.from, tx.gas)
        }
    };
    bundle.into_iter().enumerate().map(deposit).collect()
}

/// Sender `n` of the hand-written deployments: 0x4210…00, 0x4210…01 and so on.
fn deployer(n: u8) -> Address {
    let mut address = address!("4210000000000000000000000000000000000000");
    address[19] = n;
    address
}

fn deploy(intent: &str, from: Address, gas: u64, code: &'static [u8]) -> TxDeposit {
    TxDeposit {
        input: Bytes::from_static(code),
        ..empty(intent, from, gas)
    }
}

/// Points a predeploy's proxy at a new implementation. The sender is the zero address, which a
/// proxy accepts as its admin.
fn upgrade(intent: &str, proxy: Address, implementation: Address) -> TxDeposit {
    let input = [&UPGRADE_TO[..], implementation.into_word().as_slice()]
        .concat()
        .into();
    TxDeposit {
        to: TxKind::Call(proxy),
        input,
        ..empty(intent, Address::ZERO, 50_000)
    }
}

/// Calls the gas price oracle's function that enables a fork.
fn enable(intent: &str, gas: u64, selector: [u8; 4]) -> TxDeposit {
    TxDeposit {
        to: TxKind::Call(GAS_PRICE_ORACLE),
        input: selector.into(),
        ..empty(intent, DEPOSITOR, gas)
    }
}

fn empty(intent: &str, from: Address, gas_limit: u64) -> TxDeposit {
    TxDeposit {
        source_hash: upgrade_source_hash(intent),
        from,
        to: TxKind::Create,
        mint: 0,
        value: U256::ZERO,
        gas_limit,
        is_system_transaction: false,
        input: Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_update::KARST_UPGRADE_GAS;
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{B256, b256, keccak256};

    fn hashes(fork: Fork) -> Vec<B256> {
        upgrade_transactions(fork)
            .iter()
            .map(|tx| keccak256(tx.encoded_2718()))
            .collect()
    }

    #[test]
    fn ecotone_and_fjord_are_the_published_transactions() {
        let Some(folder) = starling_testkit::fixture("upgrade-txs/kona-expected") else {
            return;
        };
        for (fork, name) in [(Fork::Ecotone, "ecotone"), (Fork::Fjord, "fjord")] {
            let transactions = upgrade_transactions(fork);
            for (i, tx) in transactions.iter().enumerate() {
                let published =
                    std::fs::read_to_string(folder.join(format!("{name}_tx_{i}.hex"))).unwrap();
                assert_eq!(
                    hex::encode(tx.encoded_2718()),
                    published.trim().trim_start_matches("0x"),
                    "{name} {i}"
                );
            }
            let next = folder.join(format!("{name}_tx_{}.hex", transactions.len()));
            assert!(!next.exists(), "{name} has more transactions");
        }
    }

    #[test]
    fn isthmus_sources_are_the_published_ones() {
        let sources: Vec<_> = isthmus()
            .iter()
            .map(|tx| hex::encode(tx.source_hash))
            .collect();
        let known = [
            "3b2d0821", "fc70b484", "107a570d", "ebe8b5cb", "ecf2d916", "ad74e1ad", "3ddf4b13",
            "bfb734da",
        ];
        assert!(
            sources
                .iter()
                .zip(known)
                .all(|(source, start)| source.starts_with(start)),
            "{sources:?}"
        );
        assert_eq!(sources.len(), known.len());
        let sizes: Vec<_> = isthmus().iter().map(|tx| tx.input.len()).collect();
        assert_eq!(sizes, [1742, 7260, 2198, 36, 36, 36, 4, 92]);
        // The proxy must point at the deployed contract. Deployers have nonce 0, so the address is
        // known.
        for (deploy, upgrade) in [(0, 3), (1, 4), (2, 5)] {
            let transactions = isthmus();
            assert_eq!(
                transactions[deploy].from.create(0).as_slice(),
                &transactions[upgrade].input[16..]
            );
        }
    }

    #[test]
    fn jovian_is_known_by_its_hashes() {
        let known = [
            b256!("0bad46dcef609affe3d306a9ce6239a1f3ec59673943a4c533eb20459950f542"),
            b256!("cd60191626fa3124e7031235c52f0adf6be545ebbd7cf55641bd9dabcbedaf6a"),
            b256!("675febfc848d9b30f27dce1aabb6572d1de80c9eaa75773ac2106eeea7ff3aff"),
            b256!("c7c01d75d0b6950fcd30b448cba848e9841ab9ebb6b46eed9ecde4ba05ad0fd9"),
            b256!("159d785e90a42f3b9a4d3b9fd4ab69e7c0edec3122cb2e767f3a66aba8f3e664"),
        ];
        assert_eq!(hashes(Fork::Jovian), known);
    }

    #[test]
    fn karst_is_known_by_its_hashes_and_gas() {
        let transactions = upgrade_transactions(Fork::Karst);
        assert_eq!(transactions.len(), 31);
        assert_eq!(
            transactions.iter().map(|tx| tx.gas_limit).sum::<u64>(),
            KARST_UPGRADE_GAS
        );
        let first = transactions[0].source_hash;
        assert_eq!(
            first,
            b256!("7e71ceb6816466ed1bbe59fce31bab86fbb815adbca6d2587fa492f6eb6eba74")
        );
        let all = keccak256(hashes(Fork::Karst).concat());
        assert_eq!(
            all,
            b256!("8103b19f142acec8f509c3f37cb3c2b093ff726cf471fb8a77fa163d54f3ca89")
        );
    }
}
