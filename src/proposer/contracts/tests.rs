use super::*;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::HashMap;

const FACTORY: &str = "devnet/abi/DisputeGameFactory.json";
const ORACLE: &str = "devnet/abi/L2OutputOracle.json";
const GAME: &str = "devnet/abi/PermissionedDisputeGame.json";

/// Function selectors in a published ABI, each with its signature.
fn selectors(file: &str) -> Option<HashMap<[u8; 4], String>> {
    let text = std::fs::read_to_string(starling_testkit::fixture(file)?).unwrap();
    let abi: Value = serde_json::from_str(&text).unwrap();
    let functions = abi.as_array().unwrap().iter();
    let functions = functions.filter(|entry| entry["type"] == "function");
    let signature = |entry: &Value| {
        let inputs = entry["inputs"].as_array().unwrap().iter();
        let types: Vec<&str> = inputs
            .map(|input| input["type"].as_str().unwrap())
            .collect();
        format!("{}({})", entry["name"].as_str().unwrap(), types.join(","))
    };
    let signatures = functions.map(signature);
    Some(signatures.map(|text| (selector(&text), text)).collect())
}

fn has(file: &str, calls: &[Bytes]) {
    let Some(known) = selectors(file) else { return };
    for call in calls {
        let selector: [u8; 4] = call[..4].try_into().unwrap();
        assert!(known.contains_key(&selector), "{file}: {call}");
    }
}

#[test]
fn calls_are_functions_of_the_published_contracts() {
    let oracle = [
        version(),
        next_block_number(),
        oracle_proposer(),
        proposer(),
        propose_output(B256::ZERO, 1, B256::ZERO, 2),
    ];
    has(ORACLE, &oracle);
    let factory = [
        version(),
        game_count(),
        game_at_index(1),
        game_implementation(1),
        init_bond(1),
        games(1, B256::ZERO, &[]),
        create_game(1, B256::ZERO, &[]),
    ];
    has(FACTORY, &factory);
    has(GAME, &[root_claim_data(), game_creator(), proposer()]);
}

/// Function selectors that op-proposer sends (facts: proposer).
#[test]
fn selectors_are_op_proposers() {
    let expected = [
        (next_block_number(), 0xdcec_3348_u32),
        (propose_output(B256::ZERO, 0, B256::ZERO, 0), 0x9aaa_b648),
        (version(), 0x54fd_4d50),
        (game_count(), 0x4d19_75b4),
        (game_at_index(0), 0xbb8a_a1fc),
        (root_claim_data(), 0xc6f0_308c),
        (init_bond(0), 0x6593_dc6e),
        (create_game(0, B256::ZERO, &[]), 0x82ec_f2f6),
    ];
    for (call, selector) in expected {
        assert_eq!(call[..4], selector.to_be_bytes());
    }
}

fn word(value: u64) -> B256 {
    U256::from(value).into()
}

fn concat(words: &[B256]) -> Vec<u8> {
    words.iter().flat_map(|word| word.0).collect()
}

#[test]
fn a_game_is_encoded_with_its_extra_data_behind_the_head() {
    let claim = B256::repeat_byte(0xcc);
    let extra = word(0x1234);
    let data = create_game(7, claim, extra.as_slice());
    let expected = [word(7), claim, word(96), word(32), extra];
    assert_eq!(data[4..], concat(&expected));
    // 33 bytes of extra data need two words.
    let long = games(7, claim, &[0xee; 33]);
    assert_eq!(long.len(), 4 + 32 * 6);
    assert_eq!(long[4 + 32 * 5], 0xee);
    assert!(long[4 + 32 * 5 + 1..].iter().all(|byte| *byte == 0));
}

#[test]
fn answers_are_read() {
    let address = Address::repeat_byte(0xaa);
    let game = concat(&[word(1), word(1_700_000_000), address.into_word()]);
    let expected = ListedGame {
        game_type: 1,
        created: 1_700_000_000,
        address,
    };
    assert_eq!(read_listed_game(&game), Ok(expected));
    let mut claim = [B256::ZERO; 7];
    claim[0] = word(u32::MAX.into());
    claim[2] = address.into_word();
    assert_eq!(read_claimant(&concat(&claim)), Ok(address));
    let none = concat(&[B256::ZERO, B256::ZERO]);
    assert_eq!(read_game(&none), Ok(None));
    let some = concat(&[address.into_word(), word(5)]);
    assert_eq!(read_game(&some), Ok(Some(address)));
    let mut text = concat(&[word(32), word(5)]);
    text.extend(b"1.2\n3");
    assert_eq!(read_text(&text), Ok("1.23".into()));
}

#[test]
fn a_permissioned_game_names_its_proposer() {
    let mut arguments = vec![0u8; 164];
    arguments[124..144].fill(0xaa);
    let encoded = |arguments: &[u8]| {
        let mut answer = concat(&[word(32), word(arguments.len() as u64)]);
        answer.extend(arguments);
        answer
    };
    let expected = Some(Address::repeat_byte(0xaa));
    assert_eq!(read_permitted(&encoded(&arguments)), Ok(expected));
    assert_eq!(read_permitted(&encoded(&arguments[..124])), Ok(None));
    assert_eq!(read_permitted(&encoded(&[])), Ok(None));
}

#[test]
fn wrong_answers_are_errors() {
    assert_eq!(read_u64(&[], 0), Err(ContractResponseError::Empty));
    let short = ContractResponseError::Short { have: 31, need: 32 };
    assert_eq!(read_u64(&[0; 31], 0), Err(short));
    let large: B256 = (U256::from(u64::MAX) + U256::from(1)).into();
    assert_eq!(
        read_u64(&large.0, 0),
        Err(ContractResponseError::Range(large, "uint64"))
    );
    let dirty = B256::repeat_byte(1);
    assert_eq!(
        read_address(&dirty.0, 0),
        Err(ContractResponseError::Range(dirty, "address"))
    );
    let game = concat(&[word(1 << 32), word(1), B256::ZERO]);
    assert_eq!(
        read_listed_game(&game),
        Err(ContractResponseError::Range(word(1 << 32), "uint32"))
    );
    // The first three words alone are not a complete claim.
    assert!(read_claimant(&concat(&[B256::ZERO; 3])).is_err());
    for (offset, length) in [(u64::MAX, 0), (33, 0), (32, 1), (32, u64::MAX)] {
        let answer = concat(&[word(offset), word(length)]);
        assert_eq!(
            read_text(&answer),
            Err(ContractResponseError::Offset),
            "{offset} {length}"
        );
    }
    let endless = concat(&[B256::repeat_byte(0xff), B256::repeat_byte(0xff)]);
    assert_eq!(read_text(&endless), Err(ContractResponseError::Offset));
}

proptest! {
    #[test]
    fn any_answer_is_read_or_refused(answer in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = (read_listed_game(&answer), read_claimant(&answer), read_game(&answer));
        let _ = read_permitted(&answer);
        if let Ok(text) = read_text(&answer) {
            prop_assert!(text.chars().count() <= MAX_TEXT);
        }
    }

    #[test]
    fn numbers_are_read_as_they_were_written(value: u64, index in 0usize..4) {
        let mut words = [B256::repeat_byte(0xff); 5];
        words[index] = word(value);
        prop_assert_eq!(read_u64(&concat(&words), index), Ok(value));
    }
}
