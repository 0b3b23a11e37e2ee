//! The expected values are computed by hand from the formulas in op-batcher's documentation.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

fn options(curve: ThrottleCurve) -> ThrottleOptions {
    ThrottleOptions {
        curve,
        ..ThrottleOptions::default()
    }
}

fn read(controller: &mut ThrottleController, load: u64) -> (f64, u64, u64) {
    let limits = controller.update(load, Instant::now());
    (limits.intensity, limits.max_tx, limits.max_block)
}

/// Load, expected intensity, expected transaction limit, expected block limit.
type Row = (u64, f64, u64, u64);

fn check(curve: ThrottleCurve, rows: &[Row]) {
    let mut controller = ThrottleController::new(options(curve));
    for (load, intensity, tx, block) in rows {
        assert_eq!(
            read(&mut controller, *load),
            (*intensity, *tx, *block),
            "{curve} at {load}"
        );
    }
}

#[test]
fn without_throttling_only_blocks_are_limited() {
    for curve in ThrottleCurve::ALL {
        check(curve, &[(0, 0.0, 0, 130_000), (3_200_000, 0.0, 0, 130_000)]);
        let limits = ThrottleController::new(options(curve)).limits();
        assert_eq!((limits.max_tx, limits.max_block), (0, 130_000));
    }
}

#[test]
fn step_is_all_or_nothing() {
    check(
        ThrottleCurve::Step,
        &[
            (3_200_001, 1.0, 150, 2_000),
            (50_000_000, 1.0, 150, 2_000),
            (3_200_000, 0.0, 0, 130_000),
        ],
    );
}

#[test]
fn linear_goes_in_proportion() {
    check(
        ThrottleCurve::Linear,
        &[
            // The loads are a quarter, a half and three quarters of 9,600,000 above the threshold.
            // With intensity x, the limits are 20,000 − 19,850 x and 130,000 − 128,000 x.
            (5_600_000, 0.25, 15_037, 98_000),
            (8_000_000, 0.5, 10_075, 66_000),
            (10_400_000, 0.75, 5_112, 34_000),
            (12_800_000, 1.0, 150, 2_000),
            (99_000_000, 1.0, 150, 2_000),
        ],
    );
}

#[test]
fn quadratic_goes_by_the_square() {
    check(
        ThrottleCurve::Quadratic,
        &[
            (5_600_000, 0.0625, 18_759, 122_000),
            (8_000_000, 0.25, 15_037, 98_000),
            (10_400_000, 0.5625, 8_834, 58_000),
            (12_800_000, 1.0, 150, 2_000),
        ],
    );
}

#[test]
fn a_lower_limit_of_zero_never_limits() {
    let mut controller = ThrottleController::new(ThrottleOptions {
        tx_size_lower: 0,
        ..options(ThrottleCurve::Linear)
    });
    assert_eq!(read(&mut controller, 8_000_000), (0.5, 0, 66_000));
    let mut controller = ThrottleController::new(ThrottleOptions {
        block_size_lower: 0,
        ..options(ThrottleCurve::Linear)
    });
    assert_eq!(read(&mut controller, 0), (0.0, 0, 0));
    assert_eq!(read(&mut controller, 8_000_000), (0.5, 10_075, 0));
}

/// A PID controller whose results are exact in binary: Kp 0.5, Ki 0.25, Kd 0.125, threshold 1,000.
fn pid() -> ThrottleController {
    ThrottleController::new(ThrottleOptions {
        lower_threshold: 1_000,
        upper_threshold: 2_000,
        pid: PidOptions {
            kp: 0.5,
            ki: 0.25,
            kd: 0.125,
            integral_max: 1.5,
            output_max: 0.75,
            sample_time: Duration::from_secs(2),
        },
        ..options(ThrottleCurve::Pid)
    })
}

#[test]
fn pid_adds_proportion_sum_and_change() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut controller = pid();
    let mut intensity = |load, seconds| controller.update(load, at(seconds)).intensity;
    // The first sample has no elapsed time, so only the proportional part counts: 0.5 × error 0.25.
    assert_eq!(intensity(1_250, 0), 0.125);
    // A load before the sample time has passed changes nothing.
    assert_eq!(intensity(9_000, 1), 0.125);
    // Proportional part 0.25 (error 0.5), integral part 0.25 (0.5 × 2 s = 1), derivative part
    // 0.015625 (0.25 / 2 s = 0.125).
    assert_eq!(intensity(1_500, 2), 0.515625);
    // Proportional part 0.25 (error 0.5), integral part 0.375 (1 + 0.5 × 2 s, capped at 1.5), no
    // change.
    assert_eq!(intensity(1_500, 4), 0.625);
    // Proportional 0.5 (error 1), integral 0.375, derivative 0.03125: the sum is capped at 0.75.
    assert_eq!(intensity(2_000, 6), 0.75);
    // Proportional 0.0625 (error 0.125), integral 0.375, derivative −0.0546875 (change −0.875).
    assert_eq!(intensity(1_125, 8), 0.3828125);
    // A load at the threshold resets the integral.
    assert_eq!(intensity(1_000, 10), 0.0);
    // Proportional 0.125 (error 0.25), integral 0.125 (0.25 × 2 s = 0.5), derivative 0.015625 (0.25
    // / 2 s = 0.125).
    assert_eq!(intensity(1_250, 12), 0.265625);
    let state = *controller.pid();
    assert_eq!(
        (state.error, state.integral, state.derivative),
        (0.25, 0.5, 0.125)
    );
}

#[test]
fn a_reset_forgets_the_readings_and_keeps_the_load() {
    let mut controller = pid();
    controller.update(1_500, Instant::now());
    assert!(controller.limits().intensity > 0.0);
    controller.reset();
    let info = controller.info();
    assert_eq!((info.intensity, info.current_load), (0.0, 1_500));
    assert_eq!((info.max_tx_size, info.max_block_size), (0, 130_000));
    assert_eq!(*controller.pid(), PidState::default());
}

#[test]
fn a_changed_curve_counts_from_the_next_reading() {
    let mut controller = ThrottleController::new(options(ThrottleCurve::Step));
    read(&mut controller, 8_000_000);
    controller.set(ThrottleCurve::Linear, None).unwrap();
    assert_eq!(controller.limits().intensity, 0.0);
    assert_eq!(read(&mut controller, 8_000_000), (0.5, 10_075, 66_000));
    assert_eq!(
        controller.set(ThrottleCurve::Pid, None),
        Err(ThrottleError::NoPid)
    );
    let wrong = PidOptions {
        output_max: 2.0,
        ..PidOptions::default()
    };
    let said = controller.set(ThrottleCurve::Pid, Some(wrong)).unwrap_err();
    assert_eq!(said.to_string(), "PID OutputMax must be between 0 and 1");
    assert_eq!(
        controller.info().curve,
        "linear",
        "a refused one changes nothing"
    );
    controller
        .set(ThrottleCurve::Pid, Some(PidOptions::default()))
        .unwrap();
    assert_eq!(controller.info().curve, "pid");
}

/// These options are valid for the step curve only.
#[test]
fn a_curve_is_refused_if_its_limits_are_wrong() {
    let mut controller = ThrottleController::new(ThrottleOptions {
        tx_size_lower: 30_000,
        ..options(ThrottleCurve::Step)
    });
    assert_eq!(read(&mut controller, 8_000_000), (1.0, 30_000, 2_000));
    assert!(controller.set(ThrottleCurve::Quadratic, None).is_err());
}

#[test]
fn the_answer_of_the_rpc_has_op_batchers_names() {
    let mut controller = ThrottleController::new(options(ThrottleCurve::Linear));
    read(&mut controller, 8_000_000);
    assert_eq!(
        serde_json::to_string(&controller.info()).unwrap(),
        r#"{"type":"linear","lower_threshold":3200000,"upper_threshold":12800000,"current_load":8000000,"intensity":0.5,"max_tx_size":10075,"max_block_size":66000}"#
    );
}

proptest! {
    /// A higher load never leads to a higher limit, and all limits stay within their bounds.
    #[test]
    fn limits_fall_with_the_load(loads in proptest::collection::vec(0u64..20_000_000, 2..50)) {
        for curve in [ThrottleCurve::Step, ThrottleCurve::Linear, ThrottleCurve::Quadratic] {
            let mut loads = loads.clone();
            loads.sort_unstable();
            let mut controller = ThrottleController::new(options(curve));
            let mut before = (0.0, 20_001, 130_000);
            for load in loads {
                let (intensity, tx, block) = read(&mut controller, load);
                prop_assert!((0.0..=1.0).contains(&intensity));
                prop_assert_eq!(tx > 0, intensity > 0.0);
                let tx = if tx == 0 { 20_001 } else { tx };
                prop_assert!(intensity >= before.0 && tx <= before.1 && block <= before.2);
                prop_assert!((150..=20_001).contains(&tx) && (2_000..=130_000).contains(&block));
                before = (intensity, tx, block);
            }
        }
    }

    /// For any sequence of loads, the PID controller's outputs stay within their bounds.
    #[test]
    fn pid_stays_within_its_bounds(
        readings in proptest::collection::vec((any::<u64>(), 0u64..10_000), 1..100),
    ) {
        let mut controller = ThrottleController::new(options(ThrottleCurve::Pid));
        let mut now = Instant::now();
        for (load, millis) in readings {
            now += Duration::from_millis(millis);
            let limits = controller.update(load, now);
            prop_assert!((0.0..=1.0).contains(&limits.intensity));
            prop_assert!(limits.max_block >= 2_000 && limits.max_block <= 130_000);
        }
    }
}
