//! Throttling under a backlog that L1 refuses. The sequencer's blocks shrink according to each
//! controller, deposits are still included, and the blocks grow again once L1 accepts the backlog.
//! `STARLING_POSTING_BACKLOG` is the backlog in megabytes (2; 30 is the full size, for which the
//! thresholds are the defaults).

use super::{
    inbox::InboxReader,
    load::{LoadThread, large, load},
    process::{BatcherLinks, BatcherProcess},
    relay::RpcRelay,
};
use crate::{
    campaign::size,
    net::{Devnet, ask, head, number, wait},
};
use alloy_primitives::{Address, TxKind, U256, hex, keccak256};
use serde_json::{Value, json};
use starling::devnet::genesis::{L1_BLOCK, SYSTEM_CONFIG};
use starling_proto::encoder::transaction_da_size;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(300);
/// Indices of accounts: the sender of the backlog, the sender of the transactions that fill blocks,
/// and the depositor.
const BACKLOG_ACCOUNT: usize = 1;
const FILLER: usize = 2;
const DEPOSITOR: usize = 3;
/// Index of the account that owns SystemConfig.
const OWNER: usize = 0;
/// Bytes of each transaction of the backlog, and bytes of each transaction that fills a throttled
/// block.
const HUGE: usize = 100_000;
const SMALL: usize = 960;
/// Lower and upper limit of a block's DA size, in bytes.
const LOWER: u64 = 2_400;
const UPPER: u64 = 20_000;
/// Time after a limit is set in which blocks may still be built without it.
const DELAY: Duration = Duration::from_secs(3);

/// The limit reported by the throttle controller at a moment.
struct Sample {
    at: Instant,
    max_block: u64,
    /// Number of the newest block at that moment.
    head: u64,
}

/// Sets Jovian's DA footprint scalar to one gas a byte. At the default of 400 a block has room for
/// 150 kB, so that 30 MB would take five minutes and double the base fee many times.
fn fill_blocks_with_data(net: &Devnet) {
    let (l1, owner) = (net.l1().http, &net.accounts[OWNER]);
    let pending = json!([owner.address, "pending"]);
    let nonce = number(&ask(&l1, "eth_getTransactionCount", pending));
    let mut input = keccak256("setDAFootprintGasScalar(uint16)")[..4].to_vec();
    input.extend_from_slice(&U256::ONE.to_be_bytes::<32>());
    let chain = number(&ask(&l1, "eth_chainId", json!([])));
    let to = TxKind::Call(SYSTEM_CONFIG);
    let raw = owner.sign(chain, nonce, to, U256::ZERO, input.into(), 200_000);
    ask(&l1, "eth_sendRawTransaction", json!([raw]));
    let url = net.sequencer().http;
    wait("the price on L2", PATIENCE, || {
        let data = keccak256("daFootprintGasScalar()");
        let data = hex::encode_prefixed(&data[..4]);
        let request = json!([{ "to": L1_BLOCK, "data": data }, "latest"]);
        (number(&ask(&url, "eth_call", request)) == 1).then_some(())
    });
}

/// A network with a backlog, and the thresholds of its batcher.
struct Throttled {
    net: Devnet,
    relay: RpcRelay,
    thresholds: [u64; 2],
    backlog: u64,
    /// Estimated DA bytes of one small transaction.
    filler: u64,
}

impl Throttled {
    fn new() -> Self {
        let net = Devnet::start(&["--l2.block-time=1", "--l1.block-time=1", "--replicas=1"]);
        let backlog = size("STARLING_POSTING_BACKLOG", 2) as u64 * 1_000_000;
        // The default thresholds, scaled from 30 MB to the backlog.
        let thresholds = [backlog * 32 / 300, backlog * 128 / 300];
        let raw = large(&net.accounts[FILLER], net.l2_chain_id, 0, SMALL);
        fill_blocks_with_data(&net);
        Self {
            relay: RpcRelay::start(&net.l1().http),
            net,
            thresholds,
            backlog,
            filler: transaction_da_size(&raw),
        }
    }

    /// Makes a backlog, and starts a batcher whose transactions L1 refuses.
    fn start(&self, curve: &str) -> BatcherProcess {
        let url = self.net.sequencer().http;
        ask(&url, "miner_setMaxDASize", json!(["0x0", "0x0"]));
        self.relay.refuse(true);
        let count = self.backlog / HUGE as u64 + 1;
        load(&self.net, BACKLOG_ACCOUNT, count, HUGE);
        let [lower, upper] = self.thresholds;
        let options = [
            format!("--throttle.controller-type={curve}"),
            format!("--throttle.unsafe-da-bytes-lower-threshold={lower}"),
            format!("--throttle.unsafe-da-bytes-upper-threshold={upper}"),
            format!("--throttle.block-size-lower-limit={LOWER}"),
            format!("--throttle.block-size-upper-limit={UPPER}"),
            "--throttle.tx-size-lower-limit=0".into(),
            "--data-availability-type=blobs".into(),
            "--target-num-frames=6".into(),
            "--max-pending-tx=10".into(),
            "--max-channel-duration=2".into(),
            "--wait-node-sync".into(),
            "--resubmission-timeout=10s".into(),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let links = BatcherLinks {
            l1: self.relay.url.clone(),
            ..BatcherLinks::of(&self.net)
        };
        BatcherProcess::start(&links, curve, &options)
    }

    /// Estimated DA bytes of a block, not counting deposits.
    fn block_bytes(&self, at: u64) -> u64 {
        let params = json!([format!("{at:#x}"), true]);
        let block = ask(&self.net.sequencer().http, "eth_getBlockByNumber", params);
        let transactions = block["transactions"].as_array().expect("a list").iter();
        let filler = json!(self.net.accounts[FILLER].address);
        let count = transactions.filter(|tx| tx["from"] == filler).count();
        count as u64 * self.filler
    }

    /// Checks that the reported limit is on the controller's curve.
    fn check_limits(&self, curve: &str, info: &Value) {
        let field = |name: &str| info[name].as_u64().expect("a number");
        let (load, limit) = (field("current_load"), field("max_block_size"));
        let intensity = info["intensity"].as_f64().expect("a number");
        let [lower, upper] = self.thresholds.map(|threshold| threshold as f64);
        let share = ((load as f64 - lower) / (upper - lower)).clamp(0.0, 1.0);
        let expected = match curve {
            "step" => f64::from(u8::from(load as f64 > lower)),
            "linear" => share,
            "quadratic" => share * share,
            _ => intensity,
        };
        assert!((intensity - expected).abs() < 1e-9, "{curve}: {info}");
        assert!((0.0..=1.0).contains(&intensity), "{curve}: {info}");
        let limit_of = UPPER as f64 - intensity * (UPPER - LOWER) as f64;
        assert!((limit as f64 - limit_of).abs() < 2.0, "{curve}: {info}");
    }

    /// Waits until the limit has its lowest value, and checks four throttled blocks and a deposit.
    fn shrinks(&self, curve: &str, batcher: &BatcherProcess) {
        wait("the lowest limit", PATIENCE, || {
            let info = batcher.admin("admin_getThrottleController").ok()?;
            self.check_limits(curve, &info);
            let load = info["current_load"].as_u64()?;
            (load > self.backlog * 9 / 10 && info["max_block_size"] == LOWER).then_some(())
        });
        let url = self.net.sequencer().http;
        let first = wait("a throttled block", PATIENCE, || {
            let at = head(&url)?;
            let size = self.block_bytes(at);
            (size > 0 && size <= LOWER).then_some(at)
        });
        self.deposit_enters();
        wait("throttled blocks", PATIENCE, || {
            head(&url).filter(|head| *head >= first + 3)
        });
        let sizes: Vec<_> = (first..first + 4).map(|at| self.block_bytes(at)).collect();
        println!("{curve}: throttled blocks of {sizes:?} bytes");
        assert!(sizes.iter().all(|size| *size <= LOWER));
    }

    /// Checks that a deposit is included whose data exceed the current block limit.
    fn deposit_enters(&self) {
        let (l1, account) = (self.net.l1().http, &self.net.accounts[DEPOSITOR]);
        let nonce = ask(
            &l1,
            "eth_getTransactionCount",
            json!([account.address, "latest"]),
        );
        let nonce = number(&nonce);
        let to = Address::with_last_byte(0x80 + nonce as u8);
        let mut input = hex::decode("e9e05c42").expect("hex");
        input.extend_from_slice(to.into_word().as_slice());
        let data = large(account, self.net.l2_chain_id, nonce, LOWER as usize * 2);
        for word in [7_000, 500_000, 0, 0xa0, data.len() as u64] {
            input.extend_from_slice(&U256::from(word).to_be_bytes::<32>());
        }
        input.extend_from_slice(&data);
        input.resize(input.len().div_ceil(32) * 32 + 4, 0);
        let chain = number(&ask(&l1, "eth_chainId", json!([])));
        let to_portal = TxKind::Call(self.net.portal);
        let value = U256::from(7_000);
        let raw = account.sign(chain, nonce, to_portal, value, input.into(), 3_000_000);
        ask(&l1, "eth_sendRawTransaction", json!([raw]));
        let sequencer = self.net.sequencer().http;
        wait("the deposit on L2", PATIENCE, || {
            let balance = ask(&sequencer, "eth_getBalance", json!([to, "latest"]));
            (number(&balance) == 7_000).then_some(())
        });
    }

    /// Lets L1 accept the backlog. While the limit rises, each sample checks the newest block.
    fn grows(&self, curve: &str, batcher: &BatcherProcess) {
        let url = self.net.sequencer().http;
        let first = head(&url).expect("a head") + 1;
        self.relay.refuse(false);
        let mut samples: Vec<Sample> = Vec::new();
        wait("the backlog to go", PATIENCE, || {
            let info = batcher.admin("admin_getThrottleController").ok()?;
            self.check_limits(curve, &info);
            samples.push(Sample {
                at: Instant::now(),
                max_block: info["max_block_size"].as_u64()?,
                head: head(&url)?,
            });
            (info["max_block_size"] == UPPER).then_some(())
        });
        let last = head(&url).expect("a head");
        for sample in &samples {
            let earlier = |other: &&Sample| {
                other.at <= sample.at && sample.at.duration_since(other.at) < DELAY
            };
            let limits = samples
                .iter()
                .filter(earlier)
                .map(|sample| sample.max_block);
            let limit = limits.max().expect("a sample");
            assert!(self.block_bytes(sample.head) <= limit, "{curve}: {limit}");
        }
        let full = wait("a block of the upper limit", PATIENCE, || {
            let at = head(&url)?;
            let size = self.block_bytes(at);
            (size > UPPER - 2 * self.filler).then_some((at, size))
        });
        assert!(full.1 <= UPPER, "{full:?}");
        println!(
            "{curve}: grew from block {first} to {last}, {} samples",
            samples.len()
        );
    }
}

#[test]
fn blocks_shrink_and_grow_as_each_controller_says_and_deposits_enter() {
    let throttled = Throttled::new();
    let pause = Duration::from_millis(20);
    let _filler = LoadThread::start(&throttled.net, FILLER, SMALL, pause);
    for curve in ["step", "linear", "quadratic", "pid"] {
        let started = Instant::now();
        let batcher = throttled.start(curve);
        throttled.shrinks(curve, &batcher);
        throttled.grows(curve, &batcher);
        batcher.stop();
        println!("{curve}: {:?}", started.elapsed());
    }
    let inbox = InboxReader::of(&throttled.net);
    let channels = inbox.channels(&inbox.transactions(0));
    super::inbox::assert_each_block_once(&channels, 1);
}
