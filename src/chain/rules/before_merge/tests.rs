use super::*;
use crate::chain::{block_rlp, genesis};
use alloy_primitives::Bytes;
use starling_proto::payload::Payload;

/// A chain of every fork from Homestead to BPO2, with its genesis block first.
struct Recorded {
    spec: ChainSpec,
    blocks: Vec<Payload>,
}

impl Recorded {
    fn load() -> Option<Self> {
        let file = starling_testkit::fixture_text("rpc-compat/tests/genesis.json")?;
        let path = starling_testkit::fixture("rpc-compat/tests/chain.rlp")?;
        let genesis = genesis::parse(&file).expect("a genesis file");
        let bytes = std::fs::read(path).expect("the chain");
        let mut blocks = vec![genesis.payload()];
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let header = alloy_rlp::Header::decode(&mut &rest[..]).expect("a list");
            let (block, more) = rest.split_at(header.length_with_payload());
            blocks.push(block_rlp::decode(Bytes::copy_from_slice(block)).expect("a block"));
            rest = more;
        }
        Some(Self {
            spec: genesis.spec,
            blocks,
        })
    }

    fn check(&self, header: &Header) -> Result<(), HeaderError> {
        let parent = &self.blocks[header.number as usize - 1];
        self.spec.check_header(header, &parent.header, parent.hash)
    }

    fn merge(&self, header: &Header, total: U256) -> Result<(), HeaderError> {
        let parent = &self.blocks[header.number as usize - 1].header;
        self.spec.check_merge(header, parent, total)
    }
}

#[test]
fn the_headers_of_a_chain_of_every_fork_are_valid() {
    let Some(chain) = Recorded::load() else {
        return;
    };
    let mut total = chain.blocks[0].header.difficulty;
    for block in &chain.blocks[1..] {
        assert_eq!(
            chain.check(&block.header),
            Ok(()),
            "block {}",
            block.number()
        );
        assert_eq!(
            chain.merge(&block.header, total),
            Ok(()),
            "block {}",
            block.number()
        );
        total += block.header.difficulty;
    }
    let mined = chain
        .blocks
        .iter()
        .filter(|block| chain.spec.mined(&block.header).is_some());
    assert_eq!(mined.count(), 36);
}

#[test]
fn fields_that_do_not_belong_to_a_block_before_the_merge_are_refused() {
    let Some(chain) = Recorded::load() else {
        return;
    };
    let changed = |number: usize, change: &dyn Fn(&mut Header)| {
        let mut header = chain.blocks[number].header.clone();
        change(&mut header);
        chain.check(&header)
    };
    let (have, want) = (U256::from(131_073), U256::from(131_072));
    assert_eq!(
        changed(5, &|header| header.difficulty = have),
        Err(HeaderError::WrongDifficulty { have, want })
    );
    assert_eq!(
        changed(26, &|header| header.base_fee_per_gas = Some(1)),
        Err(HeaderError::Unexpected("base fee"))
    );
    assert_eq!(
        changed(27, &|header| header.base_fee_per_gas = None),
        Err(HeaderError::Missing("base fee"))
    );
    assert_eq!(
        changed(30, &|header| header.withdrawals_root = Some(B256::ZERO)),
        Err(HeaderError::Unexpected("withdrawals root"))
    );
    assert!(matches!(
        changed(27, &|header| header.gas_limit = 100_000_000),
        Err(HeaderError::GasLimitChange {
            parent: 200_000_000,
            ..
        })
    ));
    let long = changed(9, &|header| header.extra_data = vec![0; 33].into());
    assert_eq!(long, Err(HeaderError::ExtraDataLength(33)));
    // A block after Shanghai's time cannot be mined.
    let late = changed(35, &|header| header.timestamp = 390);
    assert_eq!(late, Err(HeaderError::MinedAfterMerge));
}

#[test]
fn the_merge_is_where_the_total_difficulty_has_it() {
    let Some(chain) = Recorded::load() else {
        return;
    };
    let terminal = U256::from(4_732_352);
    let [mined, merged, after] = [35, 36, 37].map(|number| &chain.blocks[number].header);
    let total = terminal - U256::ONE;
    assert_eq!(
        chain.merge(merged, total),
        Err(HeaderError::MergedEarly { total, terminal })
    );
    assert_eq!(chain.merge(merged, terminal), Ok(()));
    assert_eq!(chain.merge(mined, total), Ok(()));
    assert_eq!(
        chain.merge(mined, terminal),
        Err(HeaderError::MinedAfterMerge)
    );
    assert_eq!(chain.merge(after, terminal), Ok(()));
    let again = Header {
        difficulty: U256::from(131_072),
        ..after.clone()
    };
    assert_eq!(
        chain.merge(&again, terminal),
        Err(HeaderError::MinedAfterMerge)
    );
}

impl Recorded {
    fn rules(&self) -> &BeforeMerge {
        (self.spec.before_merge()).expect("it begins before the merge")
    }

    /// The ancestors of block `number` against which its uncles are checked.
    fn ancestors(&self, number: usize) -> Vec<(B256, Header)> {
        let first = number.saturating_sub(UNCLE_GENERATIONS as usize);
        let above = self.blocks[first..number].iter().rev();
        above.map(|it| (it.hash, it.header.clone())).collect()
    }

    fn check_uncles(
        &self,
        number: usize,
        rewarded: &[B256],
        uncles: &[Header],
    ) -> Result<(), UncleError> {
        let ancestors = &self.ancestors(number);
        let relatives = Relatives {
            ancestors,
            rewarded,
        };
        relatives.check(&self.spec, uncles)
    }
}

#[test]
fn uncles_are_recent_valid_and_rewarded_once() {
    let Some(chain) = Recorded::load() else {
        return;
    };
    let blocks = chain.blocks.iter();
    let mut checked = 0;
    for block in blocks.filter(|block| !block.uncles().is_empty()) {
        let number = block.number() as usize;
        let check = |uncles: &[Header]| chain.check_uncles(number, &[], uncles);
        let uncle = block.uncles()[0].clone();
        let (hash, parent) = (uncle.hash_slow(), chain.ancestors(number).remove(0));
        assert_eq!(check(block.uncles()), Ok(()), "block {number}");
        let known = Err(UncleError::Known(hash));
        assert_eq!(chain.check_uncles(number, &[hash], block.uncles()), known);
        assert_eq!(check(&[uncle.clone(), uncle.clone()]), known);
        let three = [0, 1, 2].map(|_| uncle.clone());
        assert_eq!(check(&three), Err(UncleError::Count(3)));
        let canonical = Err(UncleError::Known(parent.0));
        assert_eq!(check(&[parent.1]), canonical);
        let sibling = Header {
            parent_hash: parent.0,
            ..uncle.clone()
        };
        let young = Err(UncleError::Parent(sibling.hash_slow()));
        assert_eq!(check(&[sibling]), young);
        let easy = Header {
            difficulty: U256::from(1),
            ..uncle
        };
        assert!(matches!(check(&[easy]), Err(UncleError::Header { .. })));
        checked += 1;
    }
    assert!(checked > 10, "{checked} blocks with uncles");
}

#[test]
fn difficulty_follows_the_time_the_uncles_and_the_bomb() {
    let Some(chain) = Recorded::load() else {
        return;
    };
    let rules = chain.rules();
    let parent = |number: u64| Header {
        number,
        timestamp: 1_000,
        difficulty: U256::from(2_048_000),
        ..Default::default()
    };
    let difficulty =
        |number, uncles, late: u64| rules.difficulty(&parent(number), uncles, 1_000 + late);
    // Homestead: ten seconds a step; uncles do not matter.
    assert_eq!(difficulty(1, true, 9), U256::from(2_049_000));
    assert_eq!(difficulty(1, false, 10), U256::from(2_048_000));
    assert_eq!(difficulty(1, false, 29), U256::from(2_047_000));
    assert_eq!(
        difficulty(1, false, 1 << 40),
        U256::from(2_048_000 - 99_000)
    );
    // Byzantium: nine seconds a step, and one step more if the parent has uncles.
    assert_eq!(difficulty(20, false, 8), U256::from(2_049_000));
    assert_eq!(difficulty(20, true, 8), U256::from(2_050_000));
    assert_eq!(difficulty(20, true, 18), U256::from(2_048_000));
    // The difficulty bomb, which Gray Glacier delays by 11,400,000 blocks.
    assert_eq!(difficulty(11_599_998, false, 9), U256::from(2_048_000));
    assert_eq!(difficulty(11_599_999, false, 9), U256::from(2_048_001));
    assert_eq!(difficulty(11_799_999, false, 9), U256::from(2_048_004));
    assert_eq!(difficulty(u64::MAX - 1, false, 9), U256::MAX);
}

#[test]
fn rewards_fall_with_the_forks_and_with_the_age_of_an_uncle() {
    let Some(chain) = Recorded::load() else {
        return;
    };
    let rules = chain.rules();
    let header = |number: u64, byte: u8| Header {
        number,
        beneficiary: Address::repeat_byte(byte),
        ..Default::default()
    };
    let ether = |eighths: u128| ETH_TO_WEI / 8 * eighths;
    for (number, reward) in [(5, 5), (10, 3), (20, 2)] {
        let uncles = [header(number - 1, 2), header(number - 3, 3)];
        let paid = rules.rewards(&header(number, 1), &uncles);
        let expected = [
            (2, ether(7 * reward)),
            (3, ether(5 * reward)),
            (1, ether(8 * reward) + ether(8 * reward) / 32 * 2),
        ];
        let expected = expected.map(|(byte, wei)| BlockPayment {
            to: Address::repeat_byte(byte),
            wei,
        });
        assert_eq!(paid, expected, "block {number}");
    }
}
