use super::*;
use starling_proto::fork::ForkSchedule;

/// A change that makes the options invalid, and the beginning of the error message.
type Wrong = (fn(&mut BatcherOptions), &'static str);

const WRONG: [Wrong; 19] = [
    (
        |o| o.poll_interval = Duration::ZERO,
        "must set PollInterval",
    ),
    (
        |o| o.max_l1_tx_size_bytes = 1,
        "MaxL1TxSize must be greater than 1",
    ),
    (
        |o| o.target_num_frames = 0,
        "TargetNumFrames must be at least 1",
    ),
    (
        |o| o.compressor = CompressorKind::Ratio(0.0),
        "invalid ApproxComprRatio 0 for ratio compressor",
    ),
    (
        |o| o.compressor = CompressorKind::Ratio(1.5),
        "invalid ApproxComprRatio 1.5 for ratio compressor",
    ),
    (|o| o.batch_type = 2, "unknown batch type: 2"),
    (
        |o| o.check_recent_txs_depth = 129,
        "CheckRecentTxsDepth cannot be set higher than 128: 129",
    ),
    (
        |o| (o.data_availability, o.target_num_frames) = (DataAvailability::Blobs, 10),
        "too many frames for blob transactions, max 9",
    ),
    (
        |o| (o.data_availability, o.target_num_frames) = (DataAvailability::Auto, 10),
        "too many frames for blob transactions, max 9",
    ),
    (
        |o| o.throttle.upper_threshold = o.throttle.lower_threshold,
        "throttle.upper-threshold must be greater than throttle.lower-threshold",
    ),
    (
        |o| o.throttle.block_size_lower = 130_000,
        "throttle.block-size-lower-limit must be less than throttle.block-size-upper-limit",
    ),
    (
        |o| o.throttle.tx_size_lower = 20_000,
        "throttle.tx-size-lower-limit must be less than throttle.tx-size-upper-limit",
    ),
    (|o| pid(o).ki = -0.5, "PID gains must be non-negative"),
    (|o| pid(o).kp = f64::NAN, "PID gains must be non-negative"),
    (
        |o| pid(o).integral_max = 0.0,
        "PID IntegralMax must be positive",
    ),
    (
        |o| pid(o).output_max = 1.01,
        "PID OutputMax must be between 0 and 1",
    ),
    (
        |o| pid(o).sample_time = Duration::ZERO,
        "PID SampleTime must be positive",
    ),
    (
        |o| o.max_l1_tx_size_bytes = 24,
        "invalid channel configuration: max frame size 23 is less than the minimum 24",
    ),
    (
        |o| o.max_l1_tx_size_bytes = 2_000_000,
        "invalid channel configuration: max frame size 1999999 is more than readers accept",
    ),
];

fn pid(options: &mut BatcherOptions) -> &mut PidOptions {
    options.throttle.curve = ThrottleCurve::Pid;
    &mut options.throttle.pid
}

#[test]
fn each_wrong_option_has_op_batchers_sentence() {
    assert_eq!(BatcherOptions::default().check(), Ok(()));
    for (change, expected) in WRONG {
        let mut options = BatcherOptions::default();
        change(&mut options);
        let said = options.check().expect_err(expected).to_string();
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn options_without_effect_are_not_checked() {
    let changes: [fn(&mut BatcherOptions); 5] = [
        |o| o.target_num_frames = 10,
        |o| o.throttle.pid.kp = -1.0,
        |o| {
            (o.throttle.lower_threshold, o.throttle.upper_threshold) = (0, 0);
        },
        |o| (o.throttle.tx_size_lower, o.throttle.tx_size_upper) = (0, 0),
        |o| (o.throttle.curve, o.throttle.tx_size_lower) = (ThrottleCurve::Step, 30_000),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut options = BatcherOptions::default();
        change(&mut options);
        assert_eq!(options.check(), Ok(()), "change {index}");
    }
}

/// A chain on which `fork` is active from genesis.
fn chain(fork: Fork) -> RollupConfig {
    RollupConfig {
        forks: ForkSchedule::from_genesis(fork),
        channel_timeout: 300,
        seq_window_size: 3600,
        ..RollupConfig::default()
    }
}

#[test]
fn blobs_need_ecotone_and_brotli_needs_fjord() {
    let mut options = BatcherOptions {
        data_availability: DataAvailability::Auto,
        ..BatcherOptions::default()
    };
    let said = options.check_chain(&chain(Fork::Delta), 100).unwrap_err();
    assert!(
        said.to_string()
            .starts_with("cannot use Blobs before Ecotone")
    );
    assert_eq!(options.check_chain(&chain(Fork::Ecotone), 100), Ok(()));
    options.compression = ChannelCompression::Brotli10;
    let said = options.check_chain(&chain(Fork::Ecotone), 100).unwrap_err();
    assert!(
        said.to_string()
            .starts_with("cannot use brotli compression before Fjord")
    );
    // Only a fork that is active at `now` counts.
    let mut later = chain(Fork::Ecotone);
    later.forks = later.forks.with(Fork::Fjord, Some(200));
    assert!(options.check_chain(&later, 199).is_err());
    assert_eq!(options.check_chain(&later, 200), Ok(()));
}

#[test]
fn calldata_after_ecotone_and_no_throttling_are_noticed() {
    let mut options = BatcherOptions::default();
    assert_eq!(options.notices(&chain(Fork::Delta), 0).len(), 0);
    assert_eq!(options.notices(&chain(Fork::Ecotone), 0).len(), 1);
    options.throttle.lower_threshold = 0;
    assert_eq!(options.notices(&chain(Fork::Ecotone), 0).len(), 2);
}

#[test]
fn a_scheduled_granite_shortens_the_channel_timeout() {
    let mut options = BatcherOptions::default();
    let times = |options: &BatcherOptions, rollup: &RollupConfig| {
        options
            .channel_times(rollup)
            .map(|times| times.channel_timeout())
    };
    let mut rollup = chain(Fork::Fjord);
    assert_eq!(times(&options, &rollup), Ok(300));
    rollup.forks = rollup.forks.with(Fork::Granite, Some(u64::MAX));
    assert_eq!(times(&options, &rollup), Ok(50));
    options.sub_safety_margin = 51;
    let said = times(&options, &rollup).unwrap_err().to_string();
    assert!(
        said.starts_with(
            "invalid channel configuration: channel timeout is less than the safety margin"
        ),
        "{said}"
    );
}

#[test]
fn settings_follow_the_place_of_the_data() {
    let mut options = BatcherOptions {
        target_num_frames: 6,
        max_l1_tx_size_bytes: 100_000,
        batch_type: 1,
        max_blocks_per_span_batch: 7,
        ..BatcherOptions::default()
    };
    let calldata = options.calldata_settings();
    assert_eq!(
        (calldata.max_frame_size, calldata.target_frames),
        (99_999, 6)
    );
    assert_eq!(
        calldata.format,
        BatchFormat::Span {
            max_blocks: NonZeroUsize::new(7)
        }
    );
    let blobs = options.blob_settings();
    assert_eq!((blobs.max_frame_size, blobs.target_frames), (130_043, 6));
    // op-batcher's target size for a channel of six blobs.
    assert_eq!(blobs.target(), 6 * (130_043 - 23));
    options.data_availability = DataAvailability::Auto;
    let calldata = options.calldata_settings();
    assert_eq!(
        (calldata.max_frame_size, calldata.target_frames),
        (120_000, 1)
    );
    assert_eq!(options.blob_settings(), blobs);
}

#[test]
fn names_are_those_of_the_options() {
    for name in ["calldata", "blobs", "auto"] {
        let read: DataAvailability = name.parse().unwrap();
        assert_eq!(read.to_string(), name);
    }
    assert!("blob".parse::<DataAvailability>().is_err());
    for curve in ThrottleCurve::ALL {
        assert_eq!(curve.to_string().parse(), Ok(curve));
    }
    assert!("cubic".parse::<ThrottleCurve>().is_err());
}
