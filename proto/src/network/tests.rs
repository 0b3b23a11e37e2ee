use super::*;
use crate::{
    config::RollupJsonFormat,
    fork::BlobSchedule,
    network::overrides::{
        ChainProgress, ForkOverrides, RuleChangeError, check_forks, check_rollup,
    },
};

#[test]
fn every_line_is_a_valid_chain_in_alphabetical_order() {
    let all: Vec<_> = KnownNetwork::all().collect();
    assert_eq!(all.len(), lines().count(), "a line that does not parse");
    assert_eq!(all.len(), 55);
    assert!(all.is_sorted_by(|a, b| a.name < b.name));
    for network in &all {
        network.rollup.validate().expect(network.name);
        assert_eq!(KnownNetwork::find(network.name).as_ref(), Some(network));
    }
    let mut ids: Vec<_> = all.iter().map(|it| it.rollup.l2_chain_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all.len(), "a chain id twice");
}

#[test]
fn names_have_no_case_and_two_have_short_forms() {
    let name = |name| KnownNetwork::find(name).map(|network| network.name);
    assert_eq!(name("OP-Mainnet"), Some("op-mainnet"));
    assert_eq!(name("mainnet"), Some("op-mainnet"));
    assert_eq!(name("Sepolia"), Some("op-sepolia"));
    assert_eq!(name("base-mainnet"), Some("base-mainnet"));
    assert_eq!(name("op"), None);
    assert_eq!(name("#"), None);
    assert_eq!(name(""), None);
}

#[test]
fn a_damaged_line_is_no_chain() {
    let line: &'static str = lines().next().unwrap();
    let columns: Vec<_> = line.split(' ').collect();
    for end in 0..32 {
        let cut = columns[..end].join(" ").leak();
        assert_eq!(KnownNetwork::parse(cut), None, "{cut}");
    }
    for (place, wrong) in [
        (1, "x"),
        (6, "soon"),
        (21, "-1"),
        (16, "kept"),
        (25, "0x12"),
    ] {
        let mut columns = columns.clone();
        columns[place] = wrong;
        let line = columns.join(" ").leak();
        assert_eq!(KnownNetwork::parse(line), None, "{line}");
    }
    let longer =
        format!("{line} 0x0000000000000000000000000000000000000001 KeccakCommitment 1 2 3");
    assert_eq!(KnownNetwork::parse(longer.leak()), None);
}

#[test]
fn both_formats_are_read_back() {
    for network in KnownNetwork::all() {
        for format in [RollupJsonFormat::Current, RollupJsonFormat::Legacy] {
            let json = network.rollup.to_json_as(format);
            let read = RollupConfig::from_json(&json).expect(network.name);
            assert_eq!(read, network.rollup);
        }
    }
}

fn mainnet() -> RollupConfig {
    KnownNetwork::find("op-mainnet").unwrap().rollup
}

/// A chain whose first block is at time 1000 and whose head is at `head_time`. One fork activates
/// every 100 seconds; Karst at 2000.
fn chain(head_time: u64) -> (RollupConfig, ChainProgress) {
    let times = Fork::ALL
        .into_iter()
        .map(|fork| (fork, Some(1000 + fork as u64 * 100)));
    let config = RollupConfig {
        forks: ForkSchedule::from_times(times),
        ..mainnet()
    };
    let progress = ChainProgress {
        genesis_time: 1000,
        head_time,
    };
    (config, progress)
}

#[test]
fn an_override_that_is_not_given_changes_nothing_and_zero_is_genesis() {
    let configured = mainnet();
    assert_eq!(ForkOverrides::default().apply(&configured), configured);
    let overrides = ForkOverrides {
        forks: [(Fork::Canyon, 0), (Fork::Karst, 7)].into(),
        lagoon: Some(8),
        pectra_blob_schedule: Some(9),
        keep_karst_upgrade_gas: Some(false),
    };
    let changed = overrides.apply(&configured);
    let forks = configured
        .forks
        .clone()
        .with(Fork::Canyon, Some(0))
        .with(Fork::Karst, Some(7))
        .with_lagoon(Some(8));
    assert_eq!(
        changed,
        RollupConfig {
            forks,
            pectra_blob_schedule_time: Some(9),
            keep_karst_upgrade_gas: false,
            ..configured
        }
    );
    assert!(
        changed.validate().is_err(),
        "Karst before Jovian is no schedule"
    );
}

#[test]
fn a_fork_may_move_as_long_as_the_chain_has_reached_neither_time() {
    let (config, progress) = chain(1950);
    let moved = |fork, time| config.forks.clone().with(fork, time);
    let check = |now: &ForkSchedule| check_forks(&config.forks, now, progress);
    assert_eq!(check(&config.forks), Ok(()));
    assert_eq!(check(&moved(Fork::Karst, None)), Ok(()));
    assert_eq!(check(&moved(Fork::Karst, Some(1951))), Ok(()));
    for (fork, time) in [
        (Fork::Karst, Some(1950)),
        (Fork::Karst, Some(0)),
        (Fork::Jovian, None),
        (Fork::Jovian, Some(1899)),
        (Fork::Jovian, Some(1990)),
    ] {
        let said = check(&moved(fork, time)).unwrap_err().to_string();
        let name = fork.name();
        assert!(
            said.contains(&format!("--override.{name} ")) && said.contains("head has time 1950"),
            "{said}"
        );
    }
    let said = check(&moved(Fork::Jovian, None)).unwrap_err().to_string();
    assert!(
        said.starts_with("jovian would activate never") && said.contains("activating at 1900"),
        "{said}"
    );
}

#[test]
fn times_before_the_first_block_are_equal_and_an_empty_chain_has_passed_nothing() {
    let (config, progress) = chain(1950);
    let early = config.forks.clone().with(Fork::Regolith, Some(0));
    assert!(check_forks(&config.forks, &early, progress).is_err());
    let at_genesis = |time| early.clone().with(Fork::Regolith, Some(time));
    assert_eq!(
        check_forks(&at_genesis(0), &at_genesis(1000), progress),
        Ok(())
    );
    let (_, empty) = chain(1000);
    let other = ForkSchedule::from_genesis(Fork::Karst);
    assert_eq!(check_forks(&config.forks, &other, empty), Ok(()));
}

#[test]
fn settings_beside_the_forks_may_not_change_once_they_have_mattered() {
    let check = |head_time, edit: fn(&mut RollupConfig)| {
        let (was, progress) = chain(head_time);
        let mut now = was.clone();
        edit(&mut now);
        let blobs = BlobSchedule::new(vec![
            (0, BlobSchedule::CANCUN),
            (1500, BlobSchedule::PRAGUE),
        ]);
        check_rollup(&was, &now, progress, Some(&blobs))
    };
    assert_eq!(
        check(1999, |now| now.keep_karst_upgrade_gas = false),
        Ok(())
    );
    assert_eq!(
        check(2000, |now| now.keep_karst_upgrade_gas = false),
        Err(RuleChangeError::KarstGas {
            was: true,
            now: false
        })
    );
    let lagoon = |now: &mut RollupConfig| now.forks = now.forks.clone().with_lagoon(Some(2000));
    assert_eq!(check(1999, lagoon), Ok(()));
    let error = check(2000, lagoon).unwrap_err().to_string();
    assert!(
        error.starts_with("lagoon would activate at 2000, "),
        "{error}"
    );
    // Before Prague on L1, Cancun's fraction applies with either time.
    assert_eq!(
        check(1499, |now| now.pectra_blob_schedule_time = Some(1600)),
        Ok(())
    );
    assert_eq!(
        check(1900, |now| now.pectra_blob_schedule_time = Some(1500)),
        Ok(())
    );
    assert!(check(1500, |now| now.pectra_blob_schedule_time = Some(1600)).is_err());
}

#[test]
fn karst_at_genesis_has_no_gas_to_keep() {
    let (config, progress) = chain(3000);
    let was = RollupConfig {
        forks: ForkSchedule::from_genesis(Fork::Karst),
        ..config
    };
    let now = RollupConfig {
        keep_karst_upgrade_gas: false,
        ..was.clone()
    };
    assert_eq!(check_rollup(&was, &now, progress, None), Ok(()));
}
