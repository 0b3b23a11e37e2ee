//! Fees against figures from op-service's table of replacements, and properties that pools require.

use super::*;
use crate::txmgr::options::TxOptions;
use proptest::prelude::*;

/// Fee rules of the default options.
fn default_rules() -> FeeRules {
    TxOptions::default().settings().unwrap().fees
}

fn market(tip: u128, base_fee: u128) -> FeeSuggestion {
    FeeSuggestion {
        tip,
        blob_tip: tip,
        base_fee,
        blob_base_fee: Some(1),
    }
}

/// Default rules without minimums, so that small figures are not raised.
fn bare() -> FeeRules {
    FeeRules {
        min_tip: 0,
        min_base_fee: 0,
        ..default_rules()
    }
}

/// Columns: old tip, old base fee, new tip, new base fee, with blobs; expected tip, expected fee
/// cap. The figures are op-service's, except one that is higher here: blob transactions must double
/// their fee cap too.
const REPLACEMENTS: [(u128, u128, u128, u128, bool, u128, u128); 19] = [
    (100, 1000, 90, 900, false, 110, 2310),
    (100, 1000, 90, 900, true, 200, 4200),
    (100, 1000, 101, 1000, false, 110, 2310),
    (100, 1000, 101, 1000, true, 200, 4200),
    (100, 1000, 100, 1001, false, 110, 2310),
    (100, 1000, 100, 1001, true, 200, 4200),
    (100, 1000, 101, 900, false, 110, 2310),
    (100, 1000, 90, 1010, false, 110, 2310),
    (100, 1000, 90, 1010, true, 200, 4200),
    (100, 1000, 101, 2000, false, 110, 4110),
    (100, 1000, 101, 3000, true, 200, 6200),
    (100, 1000, 120, 900, false, 120, 2310),
    (100, 1000, 220, 900, true, 220, 4200),
    (100, 1000, 120, 1100, false, 120, 2320),
    (100, 1000, 220, 2000, true, 220, 4220),
    (100, 1000, 120, 1140, false, 120, 2400),
    (100, 1000, 220, 2040, true, 220, 4300),
    (100, 1000, 120, 1200, false, 120, 2520),
    (100, 1000, 220, 2100, true, 220, 4420),
];

#[test]
fn replacements_have_the_figures_of_op_service() {
    for (tip, base, new_tip, new_base, blob, expected_tip, expected_fee) in REPLACEMENTS {
        let class = if blob {
            TxClass::Blob
        } else {
            TxClass::Calldata
        };
        let old = bare().first(class, &market(tip, base)).unwrap();
        let new = bare()
            .bump(class, &old, &market(new_tip, new_base))
            .unwrap();
        let case = format!("{tip} {base} {new_tip} {new_base} {blob}");
        assert_eq!((new.tip, new.fee), (expected_tip, expected_fee), "{case}");
    }
}

#[test]
fn first_fees_offer_twice_the_base_fees_and_keep_the_lower_limits() {
    let rules = default_rules();
    let l1 = L1Fees {
        tip: 3,
        base_fee: 7 * GWEI,
        blob_base_fee: Some(4 * GWEI),
        blob_tip: None,
    };
    let now = rules.suggest(&l1).unwrap();
    let blob = rules.first(TxClass::Blob, &now).unwrap();
    assert_eq!((blob.tip, blob.fee), (GWEI, 15 * GWEI));
    assert_eq!(blob.blob_fee, Some(8 * GWEI));
    assert_eq!(
        rules.first(TxClass::Calldata, &now).unwrap(),
        FeeCaps {
            blob_fee: None,
            ..blob
        }
    );
    let quiet = L1Fees {
        base_fee: 1,
        blob_base_fee: Some(1),
        blob_tip: Some(5),
        ..l1
    };
    let now = rules.suggest(&quiet).unwrap();
    let blob = rules.first(TxClass::Blob, &now).unwrap();
    assert_eq!(blob.blob_fee, Some(GWEI));
    assert_eq!((blob.tip, blob.fee), (5, 2 * GWEI + 5));
    assert_eq!(rules.first(TxClass::Calldata, &now).unwrap().fee, 3 * GWEI);
    let young = L1Fees {
        blob_base_fee: None,
        ..l1
    };
    let now = rules.suggest(&young).unwrap();
    assert_eq!(rules.first(TxClass::Blob, &now), Err(FeeError::NoBlobs));
}

#[test]
fn fees_above_the_upper_limits_are_refused() {
    let rules = FeeRules {
        max_tip: Some(10),
        max_base_fee: Some(100),
        ..bare()
    };
    let at = |tip, base_fee, blob_tip| {
        let l1 = L1Fees {
            tip,
            base_fee,
            blob_base_fee: Some(1),
            blob_tip,
        };
        rules.suggest(&l1).map_err(|error| error.to_string())
    };
    assert!(at(10, 100, Some(10)).is_ok());
    let cases = [
        (at(11, 100, None), "tip is too high: 11, cap:10"),
        (
            at(10, 100, Some(11)),
            "blob tip cap is too high: 11, cap:10",
        ),
        (at(10, 101, None), "baseFee is too high: 101, cap:100"),
    ];
    for (said, expected) in cases {
        assert!(
            said.as_ref().is_err_and(|it| it.starts_with(expected)),
            "{said:?}"
        );
    }
}

/// Figures from op-service's limit tests. Five times the suggestion is allowed, one wei more is
/// refused, and caps below the threshold are not limited.
#[test]
fn a_replacement_beyond_the_multiple_of_the_suggestion_is_refused() {
    let rules = FeeRules {
        limit_threshold: 0,
        ..bare()
    };
    let now = market(10, 100);
    // Limits: tip cap 5 × 10 = 50, fee cap 50 + 2 × 5 × 100 = 1050.
    let old = |tip, fee| FeeCaps {
        tip,
        fee,
        blob_fee: None,
    };
    let bump = |rules: &FeeRules, old| rules.bump(TxClass::Calldata, &old, &now);
    assert_eq!(bump(&rules, old(45, 954)).unwrap(), old(50, 1050));
    let said = bump(&rules, old(46, 300)).unwrap_err().to_string();
    assert!(
        said.starts_with("bumped tip cap 51 is over 5x multiple of the suggested value"),
        "{said}"
    );
    let said = bump(&rules, old(9, 955)).unwrap_err().to_string();
    assert!(said.starts_with("bumped fee cap 1051 is over 5x"), "{said}");
    let waived = FeeRules {
        limit_threshold: 1052,
        ..rules.clone()
    };
    assert_eq!(bump(&waived, old(46, 955)).unwrap(), old(51, 1051));
    // Limit of the blob fee cap: 5 × max(2 × 1 wei, 1 gwei).
    let blob = |fee| FeeCaps {
        blob_fee: Some(fee),
        ..old(10, 210)
    };
    let replace = |fee| rules.bump(TxClass::Blob, &blob(fee), &now);
    assert_eq!(replace(5 * GWEI / 2).unwrap().blob_fee, Some(5 * GWEI));
    let said = replace(5 * GWEI / 2 + 1).unwrap_err().to_string();
    assert!(
        said.starts_with("bumped blob fee 5000000002 is over 5x"),
        "{said}"
    );
}

/// The base fee has risen and the blob base fee fallen: doubling every cap exceeds the blob fee
/// limit.
#[test]
fn a_transaction_below_l1s_prices_is_replaced_beyond_the_limit() {
    let old = FeeCaps {
        tip: GWEI,
        fee: 3 * GWEI,
        blob_fee: Some(68 * GWEI),
    };
    let risen = FeeSuggestion {
        base_fee: 34 * GWEI,
        ..market(GWEI, 0)
    };
    let rules = default_rules();
    let new = rules.bump(TxClass::Blob, &old, &risen).unwrap();
    assert_eq!((new.fee, new.blob_fee), (70 * GWEI, Some(136 * GWEI)));
    let quiet = FeeSuggestion {
        base_fee: 2 * GWEI,
        ..risen
    };
    let said = rules.bump(TxClass::Blob, &old, &quiet).unwrap_err();
    assert!(
        said.to_string()
            .starts_with("bumped blob fee 136000000000 is over 5x")
    );
    // The limit is waived too if the blob base fee has risen instead of the base fee.
    let blobs = FeeSuggestion {
        blob_base_fee: Some(69 * GWEI),
        ..quiet
    };
    let dear = FeeCaps {
        fee: 300 * GWEI,
        ..old
    };
    let new = rules.bump(TxClass::Blob, &dear, &blobs).unwrap();
    assert_eq!((new.fee, new.blob_fee), (600 * GWEI, Some(138 * GWEI)));
}

/// A filler may be of the other class than the transaction whose nonce it takes over.
#[test]
fn a_replacement_of_the_other_class_doubles_every_cap() {
    let old = bare().first(TxClass::Blob, &market(100, 1000)).unwrap();
    let new = bare()
        .bump(TxClass::Calldata, &old, &market(100, 1000))
        .unwrap();
    assert_eq!((new.tip, new.fee, new.blob_fee), (200, 4200, None));
}

#[test]
fn the_blob_tip_is_the_percentile_of_the_newest_blocks() {
    let caps = |tip, fee| FeeCaps {
        tip,
        fee,
        blob_fee: Some(1),
    };
    let mut tips = BlobTips::new(20, 60);
    assert_eq!(tips.suggest(), None);
    assert_eq!(tips.missing(5), (0..=5).collect::<Vec<_>>());
    // Percentile 60 of the eleven tips 0 to 10 is 6.
    tips.add(100, 1000, (0..=10).map(|tip| caps(tip, 5000)));
    assert_eq!(tips.suggest(), Some(6));
    // At base fee 1000, the fee caps leave 3 and 0 for the tip, whatever tip the transactions
    // offer.
    tips.add(101, 1000, [caps(900, 1003), caps(900, 900)]);
    let mut all: Vec<u128> = (0..=10).collect();
    all.extend([3, 0]);
    all.sort_unstable();
    assert_eq!(tips.suggest(), Some(all[12 * 60 / 100]));
    assert_eq!(tips.missing(102).len(), 18);
    assert_eq!(*tips.missing(102).last().unwrap(), 102);
    // Block 121 drops blocks 100 and 101, which are out of range. Block 120 drops the higher block
    // 121.
    tips.add(121, 1000, [caps(77, 5000)]);
    assert_eq!(tips.suggest(), Some(77));
    tips.add(120, 1000, [caps(7, 5000)]);
    assert_eq!(tips.suggest(), Some(7));
}

prop_compose! {
    fn fee()(exponent in 0u32..80, digits in any::<u128>()) -> u128 {
        digits % (1 << exponent.max(1))
    }
}

prop_compose! {
    fn l1_fees()(tip in fee(), base_fee in fee(), blob in fee(), blob_tip in proptest::option::of(fee())) -> L1Fees {
        L1Fees { tip, base_fee, blob_base_fee: Some(blob), blob_tip }
    }
}

/// geth's rule for replacements, with the same multiplication as in its pools.
fn is_replacement(old: &FeeCaps, new: &FeeCaps, percent: u128) -> bool {
    let more = |old: u128, new: u128| new > old && new * 100 >= old * percent;
    let blob = match (old.blob_fee, new.blob_fee) {
        (Some(old), Some(new)) => more(old, new),
        _ => true,
    };
    more(old.tip, new.tip) && more(old.fee, new.fee) && blob
}

proptest! {
    #[test]
    fn a_bump_is_a_replacement_or_is_refused_by_the_limit(
        before in l1_fees(), now in l1_fees(), blob: bool, multiplier in 1u64..20, threshold in fee(), steps in 1usize..12,
    ) {
        let rules = FeeRules { limit_multiplier: multiplier, limit_threshold: threshold, ..default_rules() };
        let (class, percent) = if blob { (TxClass::Blob, 200) } else { (TxClass::Calldata, 110) };
        let now = rules.suggest(&now).unwrap();
        let fresh = rules.first(class, &now).unwrap();
        let mut old = rules.first(class, &rules.suggest(&before).unwrap()).unwrap();
        for _ in 0..steps {
            match rules.bump(class, &old, &now) {
                Ok(new) => {
                    prop_assert!(is_replacement(&old, &new, percent), "{old:?} {new:?}");
                    prop_assert!(new.tip <= new.fee, "{new:?}");
                    prop_assert!(new.tip >= fresh.tip && new.fee >= fresh.fee && new.blob_fee >= fresh.blob_fee);
                    let times = u128::from(multiplier);
                    let is_free = |cap: u128, limit: u128| is_below_price(&old, &now) || cap < threshold || cap <= limit;
                    prop_assert!(is_free(new.tip, times * fresh.tip));
                    prop_assert!(is_free(new.fee, times * (fresh.tip + 2 * now.base_fee)));
                    prop_assert!(new.blob_fee.is_none_or(|fee| is_free(fee, times * fresh.blob_fee.unwrap())));
                    old = new;
                }
                Err(FeeError::Limit { value, .. }) => {
                    prop_assert!(value >= threshold && !is_below_price(&old, &now));
                    break;
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn no_fee_overflows(tip: u128, base_fee: u128, blob: u128, old_tip: u128, old_fee: u128) {
        let rules = default_rules();
        let l1 = L1Fees { tip, base_fee, blob_base_fee: Some(blob), blob_tip: None };
        let now = rules.suggest(&l1).unwrap();
        let old = FeeCaps { tip: old_tip.min(old_fee), fee: old_fee, blob_fee: Some(blob) };
        for class in [TxClass::Calldata, TxClass::Blob] {
            let _ = rules.bump(class, &old, &now);
        }
    }
}
