//! Runs every target on its corpus and on a few thousand cases of a fixed seed. Also tests the
//! runner.

use crate::{FuzzTarget, InputKind, mutate::Rng, runner, targets};

/// Number of cases for each target.
const CASES: u64 = 2_000;

fn short_run(name: &str) {
    let target = targets::ALL
        .iter()
        .find(|target| target.name == name)
        .expect("a target");
    let finding = runner::run(target, 1, None, |progress| progress.cases < CASES).err();
    assert!(finding.is_none(), "{name}: {finding:?}");
}

macro_rules! short_runs {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            short_run(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_short_run() {
            let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

short_runs!(
    gossip reqresp range records flags blocks transactions l1 json_rpc stored
    frame channel span batch blob pipeline l1_answers beacon_answers trace_options flashblock
);

/// A target that panics on a sequence of three bytes that no seed contains.
fn fragile(data: &[u8]) -> InputKind {
    assert!(
        !data.windows(3).any(|bytes| bytes == [0xff; 3]),
        "three of a kind"
    );
    InputKind::default()
}

#[test]
fn a_finding_is_the_same_for_the_same_seed_and_is_found_again_from_its_input() {
    let target = FuzzTarget {
        name: "fragile",
        run: fragile,
        seeds: || vec![vec![0; 64]],
    };
    let find = |seed| {
        runner::run(&target, seed, None, |progress| progress.cases < 100_000)
            .expect_err("a finding")
    };
    let finding = find(7);
    assert_eq!(finding.input, find(7).input);
    assert!(finding.what.contains("three of a kind"), "{finding:?}");
    assert!(runner::try_case(&target, &finding.input).is_err());
}

#[test]
fn seeds_come_from_our_own_encoders_where_the_vectors_are_absent() {
    for target in targets::ALL {
        assert!(!(target.seeds)().is_empty(), "{}", target.name);
    }
}

#[test]
fn numbers_are_spread() {
    let mut rng = Rng::new(1);
    let mut counts = [0; 10];
    (0..10_000).for_each(|_| counts[rng.below(10)] += 1);
    assert!(
        counts.iter().all(|count| (800..1200).contains(count)),
        "{counts:?}"
    );
}
