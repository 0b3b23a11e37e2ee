//! Transactions that are mined, and transactions that should be refused.

use super::*;
use crate::typed;
use alloy_eips::eip7702::SignedAuthorization;

impl Generator {
    /// A transaction that can be mined.
    pub fn transaction(&mut self) -> Case {
        let who = self.rng.random_range(0..8);
        let (to, input) = if self.token.is_none() {
            (TxKind::Create, token_creation())
        } else if self.one_in(8) {
            (TxKind::Create, self.creation())
        } else if self.one_in(12) {
            (TxKind::Call(DESTROY), self.anybody().into_word().to_vec())
        } else {
            let (to, data) = self.message();
            (TxKind::Call(to), data)
        };
        let account = self.users[who].clone();
        if self.token.is_none() {
            self.token = Some(account.address.create(account.nonce));
        }
        if self.one_in(20) {
            let made = account.address.create(account.nonce);
            self.contracts.push(made);
        }
        self.users[who].nonce += 1;
        let gas_limit = if input.len() > 1_000 {
            2_000_000
        } else {
            150_000 + self.below(100_000)
        };
        let value = U256::from(if self.one_in(3) {
            self.below(1_000_000)
        } else {
            0
        });
        let common = TxEip1559 {
            chain_id: self.chain_id,
            nonce: account.nonce,
            gas_limit,
            max_fee_per_gas: GWEI * u128::from(2 + self.below(3)),
            max_priority_fee_per_gas: 1_000_000 * u128::from(1 + self.below(5)),
            to,
            value,
            access_list: Default::default(),
            input: input.into(),
        };
        let raw = self.signed(&account, common);
        if to == TxKind::Call(LOOPING) {
            self.looping.insert(keccak256(&raw));
        }
        self.sent.push(raw.clone());
        Case::Send(raw)
    }

    /// A transaction of random type with these fields, signed.
    fn signed(&mut self, account: &Account, mut tx: TxEip1559) -> Bytes {
        match self.below(8) {
            0 | 1 => account.sign(typed::legacy(tx, true)),
            2 => {
                tx.access_list = self.access_list();
                account.sign(typed::listed(tx))
            }
            3 if tx.to.is_call() => {
                let authorization = self.authorization();
                let to = tx.to.to().copied().unwrap_or_default();
                account.sign(typed::delegating(tx, to, vec![authorization]))
            }
            _ => {
                if self.one_in(3) {
                    tx.access_list = self.access_list();
                }
                account.sign(tx)
            }
        }
    }

    fn authorization(&mut self) -> SignedAuthorization {
        let delegate = self.pick(&[STORE, LOG0, REVERT]);
        let authority = authority(self.below(4) as u8);
        let authorization = Authorization {
            chain_id: U256::from(self.chain_id),
            address: delegate,
            nonce: self.below(3),
        };
        let signature =
            sign_message(authority.key, authorization.signature_hash()).expect("a signature");
        authorization.into_signed(signature)
    }

    /// A transaction that must not be mined, because it is invalid or its nonce is too high.
    pub fn refused(&mut self) -> Case {
        let to = TxKind::Call(self.stranger());
        let account = self.users[8].clone();
        let poor = Account::new(B256::repeat_byte(0x70 + self.below(8) as u8));
        let good = TxEip1559 {
            chain_id: self.chain_id,
            nonce: account.nonce,
            gas_limit: 21_000,
            max_fee_per_gas: 3 * GWEI,
            max_priority_fee_per_gas: 1_000_000,
            to,
            value: U256::from(1),
            ..Default::default()
        };
        let legacy = |chain_id| TxLegacy {
            chain_id,
            gas_price: 3 * GWEI,
            gas_limit: 21_000,
            to,
            ..Default::default()
        };
        let raw: Bytes = match self.below(19) {
            0 => self.with_a_used_nonce(good),
            5 => poor.sign(good),
            7 => account.sign(legacy(None)),
            8 => account.sign(legacy(Some(self.chain_id + 5))),
            14 => account.sign(TxEip7702 {
                chain_id: self.chain_id,
                gas_limit: 100_000,
                max_fee_per_gas: 3 * GWEI,
                max_priority_fee_per_gas: 1,
                ..Default::default()
            }),
            15 if self.sent.is_empty() => Bytes::new(),
            15 => self.pick(&self.sent.clone()),
            16 => {
                let mut raw = account.sign(good).to_vec();
                raw.truncate(self.rng.random_range(0..raw.len()));
                raw.into()
            }
            17 => self.bytes(60).into(),
            18 => with_a_high_s(&account, good),
            field => account.sign(self.with_a_wrong_field(field, good)),
        };
        Case::Refused(raw.to_string())
    }

    /// A transaction with a nonce that its sender has already used, if any sender has used one.
    fn with_a_used_nonce(&self, good: TxEip1559) -> Bytes {
        let sender = self.users[..8].iter().find(|user| user.nonce > 0);
        sender.map_or(Bytes::new(), |user| {
            user.sign(TxEip1559 {
                nonce: user.nonce - 1,
                value: U256::from(99),
                ..good
            })
        })
    }

    /// `good` with one field changed such that the transaction must be refused. `field` selects the
    /// change below.
    fn with_a_wrong_field(&mut self, field: u64, good: TxEip1559) -> TxEip1559 {
        let mut tx = good;
        match field {
            1 => tx.chain_id = self.chain_id + 1,
            2 => tx.gas_limit = self.below(21_000),
            3 => tx.gas_limit = 60_000_000 + self.below(2),
            4 => (tx.max_fee_per_gas, tx.max_priority_fee_per_gas) = (1, 2),
            6 => tx.value = U256::from(10).pow(U256::from(24)),
            9 => tx.max_fee_per_gas = GWEI * 1_000_000,
            10 => {
                tx.to = TxKind::Create;
                tx.input = vec![0xfe; 49_153].into();
                tx.gas_limit = 5_000_000;
            }
            11 => (tx.input, tx.gas_limit) = (vec![1; 131_072].into(), 10_000_000),
            12 => tx.input = self.bytes(300).into(),
            13 => tx.nonce = u64::MAX,
            _ => unreachable!("no field has the number {field}"),
        }
        tx
    }
}

/// A transaction whose signature has the larger of the two possible values of s (EIP-2).
fn with_a_high_s(account: &Account, tx: TxEip1559) -> Bytes {
    let signature = sign_message(account.key, tx.signature_hash()).expect("a signature");
    let order = U256::from_be_bytes(hex!(
        "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
    ));
    let high = Signature::new(signature.r(), order - signature.s(), !signature.v());
    OpTxEnvelope::from(tx.into_signed(high))
        .encoded_2718()
        .into()
}
