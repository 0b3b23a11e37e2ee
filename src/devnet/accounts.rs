//! The accounts of a development network. Their keys are public: they come from the mnemonic that
//! development tools use ("test test … junk", m/44'/60'/0'/0/0 to 9). Funds sent to them on a
//! public chain are lost.

use alloy_primitives::{Address, U256, keccak256, uint};
use secp256k1::{SECP256K1, SecretKey};

/// Balance of each account: 10,000 ether.
pub const BALANCE: U256 = uint!(10_000_000_000_000_000_000_000_U256);

const KEYS: [&str; 10] = [
    "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80",
    "59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d",
    "5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a",
    "7c852118294e51e653712a81e05800f419141751be58f605c371e15141b007a6",
    "47e179ec197488593b187f80a00eb0da91f1b9d0b13f8733639f19c30a34926a",
    "8b3a350cf5c34c9194ca85829a2df0ec3153be0318b5e2d3348e872092edffba",
    "92db14e403b83dfe3df233f83dfa3a0d7096f21ca9b0d6d6b8d88b2b4ec1564e",
    "4bbbf85ce3377467afe5d46f804f221813b2bb87f24d81f60f1fcdbf7cbf4356",
    "dbda1821b80551c9d65939329250298aa3472ba22feea921c0cf5d620ea67b97",
    "2a871d0798f97d79848a013d4936a73bf4cc922c825d33c1cf7073dff6d409c6",
];

/// An account that has funds on both chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevAccount {
    pub address: Address,
    /// Private key in hex, with 0x.
    pub private_key: String,
}

pub fn all() -> Vec<DevAccount> {
    let account = |key: &str| DevAccount {
        address: address_of(key).unwrap_or_default(),
        private_key: format!("0x{key}"),
    };
    KEYS.into_iter().map(account).collect()
}

/// Owner of the L1 contracts.
pub fn owner() -> Address {
    address_of(KEYS[0]).unwrap_or_default()
}

/// Account of the batcher.
pub fn batcher() -> Address {
    address_of(KEYS[9]).unwrap_or_default()
}

/// Account of the proposer.
pub fn proposer() -> Address {
    address_of(KEYS[8]).unwrap_or_default()
}

/// Address of a private key in hex, with or without 0x; `None` if `key` is not a valid key.
pub fn address_of(key: &str) -> Option<Address> {
    let bytes = hex::decode(key.trim().trim_start_matches("0x")).ok()?;
    let public = SecretKey::from_slice(&bytes)
        .ok()?
        .public_key(SECP256K1)
        .serialize_uncompressed();
    Some(Address::from_slice(&keccak256(&public[1..])[12..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::address;

    #[test]
    fn the_accounts_are_the_ones_everybody_knows() {
        let accounts = all();
        assert_eq!(
            accounts[0].address,
            address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266")
        );
        assert_eq!(
            accounts[1].address,
            address!("70997970C51812dc3A010C7d01b50e0d17dc79C8")
        );
        assert_eq!(
            accounts[2].address,
            address!("3C44CdDdB6a900fa2b585dd299e03d12FA4293BC")
        );
        assert_eq!(
            accounts[5].address,
            address!("9965507D1a55bcC2695C58ba16FB37d819B0A4dc")
        );
        assert_eq!(
            accounts[9].address,
            address!("a0Ee7A142d267C1f36714E4a8F75612F20a79720")
        );
        let unique: std::collections::HashSet<_> =
            accounts.iter().map(|account| account.address).collect();
        assert!(unique.len() == 10 && !unique.contains(&Address::ZERO));
    }
}
