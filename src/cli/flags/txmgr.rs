//! Options of the transaction manager, which op-batcher and op-proposer share.

use super::{Flag, Kind::*, Program, Role, Section, flag};

/// Options of both programs. Their environment variables begin with `$prefix`.
macro_rules! shared {
    ($prefix:literal, $hd_path:literal $(, $more:expr)* $(,)?) => {
        &[
            flag("private-key", Secret, "", "Key of the account, in hex; not with --mnemonic or --signer.endpoint"),
            flag("private-key.path", Path, "", "File with the key of the account, in hex"),
            flag("mnemonic", Secret, "", "Words of a wallet (BIP-39); needs --hd-path"),
            flag("hd-path", Text, "", "Path of the account in the wallet, such as m/44'/60'/0'/0/0"),
            flag($hd_path, Text, "", "Deprecated name of --hd-path").hidden(),
            flag("signer.endpoint", Url, "", "Remote signer of transactions (op-signer); needs --signer.address"),
            flag("signer.address", Text, "", "Account that the remote signer signs for"),
            flag("signer.header", List, "", "Extra header key=value of signer requests"),
            flag("signer.tls.enabled", Bool, "true", "Use TLS client authentication"),
            flag("signer.tls.ca", Path, "tls/ca.crt", "TLS authority of the signer"),
            flag("signer.tls.cert", Path, "tls/tls.crt", "TLS client certificate"),
            flag("signer.tls.key", Path, "tls/tls.key", "TLS client key"),
            flag("num-confirmations", Uint, "10", "L1 blocks until a transaction counts as done, its own included"),
            flag("safe-abort-nonce-too-low-count", Uint, "3", "Observations that a nonce is taken before a transaction is given up"),
            flag("fee-limit-multiplier", Uint, "5", "Largest multiple of the suggested fees that a replacement offers")
                .env(&[concat!($prefix, "TXMGR_FEE_LIMIT_MULTIPLIER")]),
            flag("txmgr.fee-limit-threshold", Float, "100", "Fees below this many gwei are not limited"),
            flag("txmgr.min-tip-cap", Float, "1", "Lowest tip to assume, gwei"),
            flag("txmgr.max-tip-cap", Float, "0", "Send nothing while the tip is above this many gwei; 0 is off"),
            flag("txmgr.min-basefee", Float, "1", "Lowest base fee to assume, gwei; at least --txmgr.min-tip-cap"),
            flag("txmgr.max-basefee", Float, "0", "Send nothing while the base fee is above this many gwei; 0 is off"),
            flag("resubmission-timeout", Duration, "48s", "Time in the pool before the fees are raised"),
            flag("txmgr.rebroadcast-interval", Duration, "12s", "Time before an unmined transaction is published again unchanged; 0 is never"),
            flag("txmgr.retry-interval", Duration, "1s", "Pause after a failed publication"),
            flag("txmgr.max-retries", Uint, "10", "Retries in a row after L1 refuses a transaction"),
            flag("network-timeout", Duration, "10s", "Time limit of a call to L1 or to the signer"),
            flag("txmgr.send-timeout", Duration, "0s", "Give up a transaction that is not mined after this time; 0 never does. Giving up may change the order of batches")
                .env(&[concat!($prefix, "TXMGR_TX_SEND_TIMEOUT")]),
            flag("txmgr.not-in-mempool-timeout", Duration, "2m0s", "Time until L1's pool has accepted a transaction")
                .env(&[concat!($prefix, "TXMGR_TX_NOT_IN_MEMPOOL_TIMEOUT")]),
            flag("txmgr.receipt-query-interval", Duration, "12s", "Interval of polls for receipts"),
            flag("txmgr.already-published-custom-errs", List, "", "Texts of L1 errors that mean that the transaction is published"),
            flag(
                "txmgr.cell-proof-time",
                Uint,
                "18446744073709551615",
                "Time (Unix seconds) from which blob transactions have cell proofs: L1's Osaka fork. Not needed on a public L1",
            ),
            $($more),*
        ]
    };
}

const BATCHER: &[Flag] = shared![
    "OP_BATCHER_",
    "sequencer-hd-path",
    flag(
        "txmgr.blob-tip-cap-dynamic",
        Bool,
        "false",
        "Give blob transactions the tip that others paid lately"
    ),
    flag(
        "txmgr.blob-tip-cap-percentile",
        Uint,
        "60",
        "Percentile of these tips, 1 to 100"
    ),
    flag(
        "txmgr.blob-tip-cap-range",
        Uint,
        "20",
        "L1 blocks whose tips are looked at"
    ),
];

const PROPOSER: &[Flag] = shared!["OP_PROPOSER_", "l2-output-hd-path"];

const TITLE: &str = "Transactions on L1";

pub const SECTIONS: &[Section] = &[
    Section {
        title: TITLE,
        program: Program::OpBatcher,
        roles: &[Role::Batcher, Role::Node],
        flags: BATCHER,
    },
    Section {
        title: TITLE,
        program: Program::OpProposer,
        roles: &[Role::Proposer, Role::Node],
        flags: PROPOSER,
    },
];
