//! Transactions: those that are mined, and those that should be refused.

use super::*;

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
        let raw = self.signed(&account, to, value, input.into(), gas_limit);
        self.sent.push(raw.clone());
        Case::Send(raw)
    }

    fn signed(
        &mut self,
        account: &Account,
        to: TxKind,
        value: U256,
        input: Bytes,
        gas_limit: u64,
    ) -> Bytes {
        let (chain_id, nonce) = (self.chain_id, account.nonce);
        let price = GWEI * u128::from(2 + self.below(3));
        let tip = 1_000_000 * u128::from(1 + self.below(5));
        match self.below(8) {
            0 | 1 => account.sign(TxLegacy {
                chain_id: Some(chain_id),
                nonce,
                gas_price: price,
                gas_limit,
                to,
                value,
                input,
            }),
            2 => {
                let access_list = self.access_list();
                account.sign(TxEip2930 {
                    chain_id,
                    nonce,
                    gas_price: price,
                    gas_limit,
                    to,
                    value,
                    access_list,
                    input,
                })
            }
            3 if to.is_call() => {
                let delegate = self.pick(&[STORE, LOG0, REVERT]);
                let authority = authority(self.below(4) as u8);
                let authorization = Authorization {
                    chain_id: U256::from(chain_id),
                    address: delegate,
                    nonce: self.below(3),
                };
                let signature = sign_message(authority.key, authorization.signature_hash())
                    .expect("a signature");
                account.sign(TxEip7702 {
                    chain_id,
                    nonce,
                    gas_limit,
                    max_fee_per_gas: price,
                    max_priority_fee_per_gas: tip,
                    to: to.to().copied().unwrap_or_default(),
                    value,
                    access_list: Default::default(),
                    authorization_list: vec![authorization.into_signed(signature)],
                    input,
                })
            }
            _ => {
                let access_list = if self.one_in(3) {
                    self.access_list()
                } else {
                    Default::default()
                };
                let (max_fee_per_gas, max_priority_fee_per_gas) = (price, tip);
                account.sign(TxEip1559 {
                    chain_id,
                    nonce,
                    gas_limit,
                    max_fee_per_gas,
                    max_priority_fee_per_gas,
                    to,
                    value,
                    access_list,
                    input,
                })
            }
        }
    }

    /// A transaction that must not be mined: it is wrong, or too early.
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
            0 => match self.users[..8].iter().find(|user| user.nonce > 0).cloned() {
                Some(user) => user.sign(TxEip1559 {
                    nonce: user.nonce - 1,
                    value: U256::from(99),
                    ..good
                }),
                None => Bytes::new(),
            },
            1 => account.sign(TxEip1559 {
                chain_id: self.chain_id + 1,
                ..good
            }),
            2 => account.sign(TxEip1559 {
                gas_limit: self.below(21_000),
                ..good
            }),
            3 => account.sign(TxEip1559 {
                gas_limit: 60_000_000 + self.below(2),
                ..good
            }),
            4 => account.sign(TxEip1559 {
                max_fee_per_gas: 1,
                max_priority_fee_per_gas: 2,
                ..good
            }),
            5 => poor.sign(good),
            6 => account.sign(TxEip1559 {
                value: U256::from(10).pow(U256::from(24)),
                ..good
            }),
            7 => account.sign(legacy(None)),
            8 => account.sign(legacy(Some(self.chain_id + 5))),
            9 => account.sign(TxEip1559 {
                max_fee_per_gas: GWEI * 1_000_000,
                ..good
            }),
            10 => account.sign(TxEip1559 {
                to: TxKind::Create,
                input: vec![0xfe; 49_153].into(),
                gas_limit: 5_000_000,
                ..good
            }),
            11 => account.sign(TxEip1559 {
                input: vec![1; 131_072].into(),
                gas_limit: 10_000_000,
                ..good
            }),
            12 => account.sign(TxEip1559 {
                input: self.bytes(300).into(),
                gas_limit: 21_000,
                ..good
            }),
            13 => account.sign(TxEip1559 {
                nonce: u64::MAX,
                ..good
            }),
            14 => account.sign(TxEip7702 {
                chain_id: self.chain_id,
                gas_limit: 100_000,
                max_fee_per_gas: 3 * GWEI,
                max_priority_fee_per_gas: 1,
                ..Default::default()
            }),
            15 => match self.sent.is_empty() {
                true => Bytes::new(),
                false => self.pick(&self.sent.clone()),
            },
            16 => {
                let mut raw = account.sign(good).to_vec();
                raw.truncate(self.rng.random_range(0..raw.len()));
                raw.into()
            }
            17 => self.bytes(60).into(),
            // A signature with a high s.
            _ => {
                let signature =
                    sign_message(account.key, good.signature_hash()).expect("a signature");
                let order = U256::from_be_bytes(hex!(
                    "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
                ));
                let high = Signature::new(signature.r(), order - signature.s(), !signature.v());
                OpTxEnvelope::from(good.into_signed(high))
                    .encoded_2718()
                    .into()
            }
        };
        Case::Refused(raw.to_string())
    }
}
