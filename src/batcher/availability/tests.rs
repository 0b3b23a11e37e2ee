use super::*;
use proptest::prelude::*;

const SIZES: DataSizes = DataSizes {
    calldata: 120_001,
    blobs: 6,
};

fn at(tip: u128, base_fee: u128, blob_base_fee: u128) -> TxClass {
    let prices = DataPrices {
        tip,
        base_fee,
        blob_base_fee,
    };
    cheaper(prices, SIZES)
}

#[test]
fn blobs_until_their_fee_is_some_forty_times_that_of_gas() {
    assert_eq!(at(0, 0, 0), TxClass::Blob);
    assert_eq!(at(1, 10_000, 1), TxClass::Blob);
    assert_eq!(at(0, 1_000, 39_000), TxClass::Blob);
    assert_eq!(at(0, 1_000, 41_000), TxClass::Calldata);
    assert_eq!(at(50, 950, 41_000), TxClass::Calldata, "the tip counts");
    assert_eq!(
        at(u128::MAX, u128::MAX, u128::MAX),
        TxClass::Blob,
        "no overflow"
    );
}

proptest! {
    /// The choice agrees with the costs per byte in floating point, except where they are nearly
    /// equal.
    #[test]
    fn the_cheaper_class_costs_less_per_byte(
        gas in 1_u64..1_000_000_000_000,
        blob in 1_u64..100_000_000_000_000,
        blobs in 1_u64..=9,
        calldata in 100_u64..128_000,
    ) {
        let prices = DataPrices { tip: 0, base_fee: gas.into(), blob_base_fee: blob.into() };
        let in_calldata = (21_000.0 + 40.0 * calldata as f64) * gas as f64 / calldata as f64;
        let cost = (blobs * 131_072) as f64 * blob as f64 + 21_000.0 * gas as f64;
        let in_blobs = cost / (blobs * 130_044) as f64;
        let class = cheaper(prices, DataSizes { calldata, blobs });
        if in_blobs > in_calldata * 1.000_001 {
            prop_assert_eq!(class, TxClass::Calldata);
        } else if in_calldata > in_blobs * 1.000_001 {
            prop_assert_eq!(class, TxClass::Blob);
        }
    }
}
