use super::*;

/// A schedule with one fork every 100 seconds, from Regolith at 100 on.
fn staircase() -> ForkSchedule {
    ForkSchedule::from_times(
        Fork::ALL
            .into_iter()
            .map(|fork| (fork, Some(fork as u64 * 100))),
    )
}

#[test]
fn a_fork_is_active_from_its_second_on_and_activates_once() {
    let forks = staircase();
    assert!(!forks.is_active(Fork::Canyon, 199));
    assert!(forks.is_active(Fork::Canyon, 200));
    assert_eq!(forks.at(0), Fork::Bedrock);
    assert_eq!(forks.at(u64::MAX), Fork::Karst);
    assert!(forks.activates(Fork::Canyon, 199, 201));
    assert!(!forks.activates(Fork::Canyon, 201, 203));
    assert!(
        !ForkSchedule::from_genesis(Fork::Karst).activates(Fork::Karst, 0, 2),
        "active at genesis never activates"
    );
}

#[test]
fn envelopes_change_with_canyon_ecotone_and_isthmus_only() {
    let forks = staircase();
    let versions: Vec<_> = Fork::ALL
        .into_iter()
        .map(|fork| forks.payload_version(fork as u64 * 100) as u8)
        .collect();
    assert_eq!(versions, [0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3]);
}

#[test]
fn public_l1_chains_have_their_blob_schedules() {
    // The times are those of geth 1.17, params/config.go.
    for (chain_id, cancun, prague, bpo1, bpo2) in [
        (
            1,
            1_710_338_135,
            1_746_612_311,
            1_765_290_071,
            1_767_747_671,
        ),
        (
            11_155_111,
            1_706_655_072,
            1_741_159_776,
            1_761_017_184,
            1_761_607_008,
        ),
        (
            17_000,
            1_707_305_664,
            1_740_434_112,
            1_759_800_000,
            1_760_389_824,
        ),
        (560_048, 0, 1_742_999_832, 1_762_365_720, 1_762_955_544),
    ] {
        let steps = vec![
            (cancun, BlobSchedule::CANCUN),
            (prague, BlobSchedule::PRAGUE),
            (bpo1, BlobSchedule::BPO1),
            (bpo2, BlobSchedule::BPO2),
        ];
        assert_eq!(
            BlobSchedule::of_chain(chain_id),
            Some(BlobSchedule::new(steps)),
            "{chain_id}"
        );
    }
    assert_eq!(BlobSchedule::of_chain(900), None);
}

#[test]
fn names_find_their_forks() {
    for fork in Fork::ALL {
        assert_eq!(Fork::from_name(fork.name()), Some(fork));
    }
    assert_eq!(Fork::from_name("Canyon"), None);
}

#[test]
fn a_gap_and_a_step_back_are_refused() {
    assert_eq!(staircase().validate(), Ok(()));
    assert_eq!(ForkSchedule::default().validate(), Ok(()));
    assert_eq!(ForkSchedule::from_genesis(Fork::Jovian).validate(), Ok(()));
    let gap = staircase().with(Fork::Jovian, None).validate().unwrap_err();
    assert_eq!(
        gap.to_string(),
        "fork karst set (to 1000), but prior fork jovian missing"
    );
    let back = staircase()
        .with(Fork::Karst, Some(899))
        .validate()
        .unwrap_err();
    assert_eq!(
        back.to_string(),
        "fork karst set to 899, but prior fork jovian has higher offset 900"
    );
    let first = ForkSchedule::default()
        .with(Fork::Canyon, Some(0))
        .validate()
        .unwrap_err();
    assert_eq!(
        first.to_string(),
        "fork canyon set (to 0), but prior fork regolith missing"
    );
}

#[test]
fn ethereum_rules_follow_the_op_forks() {
    let forks = staircase();
    for (ethereum, time) in [
        (EthereumHardfork::Shanghai, 200),
        (EthereumHardfork::Cancun, 400),
        (EthereumHardfork::Prague, 800),
        (EthereumHardfork::Osaka, 1000),
    ] {
        assert_eq!(
            forks.ethereum_fork_activation(ethereum),
            ForkCondition::Timestamp(time)
        );
    }
    assert_eq!(
        forks.ethereum_fork_activation(EthereumHardfork::Amsterdam),
        ForkCondition::Never
    );
    assert!(forks.is_ethereum_fork_active_at_block(EthereumHardfork::London, 0));
    assert!(forks.is_ethereum_fork_active_at_block(EthereumHardfork::Paris, 0));
    assert!(forks.is_bedrock_active_at_block(0));
    assert_eq!(
        forks.op_fork_activation(OpHardfork::Karst),
        ForkCondition::Timestamp(1000)
    );
    assert_eq!(
        forks.op_fork_activation(OpHardfork::Interop),
        ForkCondition::Never
    );
    let l1 = EthereumSchedule {
        shanghai: Some(1),
        cancun: Some(2),
        ..Default::default()
    };
    assert_eq!(
        l1.ethereum_fork_activation(EthereumHardfork::Cancun),
        ForkCondition::Timestamp(2)
    );
    assert_eq!(
        l1.ethereum_fork_activation(EthereumHardfork::Prague),
        ForkCondition::Never
    );
    assert!(
        l1.is_shanghai(1) && !l1.is_cancun(1) && !l1.is_prague(u64::MAX) && !l1.is_osaka(u64::MAX)
    );
}
