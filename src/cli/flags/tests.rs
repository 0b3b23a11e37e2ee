use super::*;
use crate::cli::{CliError, Parsed, parse, value};
use std::collections::{BTreeSet, HashSet};

#[test]
fn names_and_environment_are_unique_in_a_role() {
    for role in Role::ALL {
        let (mut names, mut variables) = (HashSet::new(), HashSet::new());
        for flag in of_role(role) {
            assert!(
                names.insert(flag.name.clone()),
                "--{} twice in {}",
                flag.name,
                role.name()
            );
            for variable in flag.env_names() {
                assert!(
                    variables.insert(variable.clone()),
                    "{variable} twice in {}",
                    role.name()
                );
            }
        }
    }
}

#[test]
fn every_default_has_the_form_of_its_flag() {
    for flag in sections()
        .flat_map(|section| section.flags)
        .filter(|flag| !flag.default.is_empty())
    {
        assert!(
            value::read(flag.kind, &[flag.default.to_string()]).is_ok(),
            "--{}",
            flag.name
        );
    }
}

/// Flags whose defaults differ on purpose: we never use another program's data directory, our
/// caches are smaller, and a week of states is needed for withdrawal proofs.
const OWN_DEFAULTS: [&str; 3] = ["datadir", "cache", "history.state"];

/// Every option of op-node, op-geth, op-batcher and op-proposer is in the table, with the same
/// environment variables and the same default.
#[test]
fn the_table_agrees_with_the_list_of_options() {
    let Some(list) = starling_testkit::shared_text("facts/flags.csv") else {
        return;
    };
    let mut compared = 0;
    for line in list.lines().skip(1) {
        let columns = columns(line);
        let program = match columns[0].as_str() {
            "op-node" => Program::OpNode,
            "op-geth" => Program::OpGeth,
            "op-batcher" => Program::OpBatcher,
            "op-proposer" => Program::OpProposer,
            _ => continue,
        };
        // clap defines the first two flags itself. The timeout is an error in op-node too.
        if columns[1].starts_with("help")
            || columns[1].starts_with("version")
            || columns[1] == "l2.follow.source.rpc-timeout"
        {
            continue;
        }
        // An execution core uses op-node's options for the swarm.
        if program == Program::OpGeth && columns[1] == "p2p.static" {
            continue;
        }
        let flag = sections()
            .filter(|section| section.program == program)
            .flat_map(|section| section.flags)
            .find(|flag| flag.name == columns[1])
            .unwrap_or_else(|| panic!("--{} is not in the table", columns[1]));
        let variables: Vec<&str> = columns[4].split_whitespace().collect();
        assert_eq!(flag.env_names(program), variables, "--{}", flag.name);
        // Overrides have no default here, because an override that is not given changes nothing.
        if !OWN_DEFAULTS.contains(&flag.name) && !flag.name.starts_with("override.") {
            assert_eq!(flag.default, columns[3], "--{}", flag.name);
        }
        assert_eq!(
            flag.kind == Kind::Bool,
            columns[2] == "bool",
            "--{}",
            flag.name
        );
        compared += 1;
    }
    assert!(compared > 340, "only {compared} options were compared");
}

/// Every option in op-geth's help is in the table.
#[test]
fn every_option_in_the_help_of_a_real_op_geth_is_known() {
    let Some(program) = starling_testkit::program("STARLING_OP_GETH") else {
        return;
    };
    let help = std::process::Command::new(program).arg("--help").output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let known = of_role(Role::Execution);
    let is_known = |name: &str| {
        let same = |flag: &RoleFlag| flag.name == name || flag.flag.aliases.contains(&name);
        known.iter().any(same)
    };
    let words = help.split(|letter: char| letter.is_whitespace() || letter == ',');
    let names = words.filter_map(|word| word.strip_prefix("--"));
    let names = names.map(|name| name.trim_end_matches([')', '.']));
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 150, "{help}");
    let unknown = names.iter().filter(|name| !is_known(name));
    let unknown: Vec<_> = unknown.collect();
    assert_eq!(unknown, [&"help", &"version"], "clap makes these itself");
}

/// Additional option for a file that contains the key, which op-batcher and op-proposer do not
/// have.
const OWN_OPTIONS: [&str; 1] = ["private-key.path"];

/// Every other option of batcher and proposer exists in op-batcher or op-proposer.
#[test]
fn batcher_and_proposer_have_no_other_options() {
    let Some(list) = starling_testkit::shared_text("facts/flags.csv") else {
        return;
    };
    for (role, name) in [
        (Role::Batcher, "op-batcher"),
        (Role::Proposer, "op-proposer"),
    ] {
        let rows: Vec<_> = list.lines().map(columns).collect();
        for flag in of_role(role) {
            let is_known = rows.iter().any(|row| row[0] == name && row[1] == flag.name);
            assert!(
                is_known || OWN_OPTIONS.contains(&flag.flag.name),
                "{name} has no --{}",
                flag.name
            );
        }
    }
}

/// In the node's process, every option of batcher and proposer has a prefix, and the same
/// environment variable as elsewhere.
#[test]
fn options_of_batcher_and_proposer_have_prefixes_in_the_node() {
    for (role, prefix) in [(Role::Batcher, "batcher."), (Role::Proposer, "proposer.")] {
        let in_node = of_role(Role::Node);
        for flag in of_role(role) {
            let name = format!("{prefix}{}", flag.name);
            let same = in_node.iter().find(|other| other.name == name);
            let same = same.unwrap_or_else(|| panic!("--{name} is not in the node"));
            assert_eq!(same.env_names(), flag.env_names(), "--{name}");
            assert_eq!(same.flag.kind, flag.flag.kind, "--{name}");
        }
    }
}

/// Splits a line of the list into its columns, which may be quoted.
fn columns(line: &str) -> Vec<String> {
    let (mut columns, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            letter => columns
                .last_mut()
                .expect("there is always a column")
                .push(letter),
        }
    }
    columns
}

/// Options that may be ignored: without them the node makes no error and does no harm, but may lack
/// a service. Before adding an option here, consider what an operator who sets it relies on.
const HARMLESS: &str = "
    allow-insecure-unlock altda.da-server altda.da-service altda.get-timeout altda.max-concurrent-da-requests
    altda.put-timeout altda.verify-on-read authrpc.addr authrpc.jwtsecret authrpc.port authrpc.vhosts
    batcher.active-sequencer-check-duration batcher.altda.da-server batcher.altda.da-service
    batcher.altda.get-timeout batcher.altda.max-concurrent-da-requests batcher.altda.put-timeout
    batcher.altda.verify-on-read batcher.l2-eth-rpc batcher.log.color batcher.log.format batcher.log.level
    batcher.log.pid batcher.metrics.addr batcher.metrics.enabled batcher.metrics.port batcher.pprof.addr
    batcher.pprof.enabled batcher.pprof.path batcher.pprof.port batcher.pprof.type batcher.rollup-rpc beacon.api
    beacon.api.header beacon.checkpoint beacon.checkpoint.file beacon.config beacon.genesis.gvroot
    beacon.genesis.time beacon.nofilter beacon.threshold beta.extra-networks blobpool.datacap blobpool.datadir
    blobpool.pricebump bootnodes cache.blocklogs cache.database cache.gc cache.noprefetch cache.snapshot cache.trie
    cache.trie.journal cache.trie.rejournal conductor.rpc conductor.rpc-timeout crypto.kzg datadir.ancient
    datadir.era datadir.minfreedisk db.engine debug.logslowblock dev.gaslimit discovery.dns discovery.port
    discovery.v4 discovery.v5 eth.requiredblocks ethstats exec execution.pprof.addr execution.pprof.port
    execution.rollup.halt execution.syncmode experimental.sequencer-api fdlimit go-execution-trace graphql
    graphql.corsdomain graphql.vhosts header heartbeat.enabled heartbeat.moniker heartbeat.url history.chain
    history.logs.export history.transactions history.trienode history.trienode.full-value-checkpoint identity
    ignore-missing-pectra-blob-schedule interop.dependency-set interop.jwt-secret interop.rpc.port jspath keystore
    l2 l2.backup-unsafe-sync-rpc l2.backup-unsafe-sync-rpc.trustrpc l2.engine-rpc-timeout l2.engine-sync
    l2.enginekind l2.jwt-secret l2.skip-sync-start-check lightkdf log.backtrace log.compress log.debug log.file log.maxage log.maxbackups
    log.maxsize log.rotate log.vmodule maxpeers maxpendpeers metrics.expensive metrics.influxdb
    metrics.influxdb.bucket metrics.influxdb.database metrics.influxdb.endpoint metrics.influxdb.interval
    metrics.influxdb.organization metrics.influxdb.password metrics.influxdb.tags metrics.influxdb.token
    metrics.influxdb.username metrics.influxdbv2 mine miner.etherbase miner.extradata miner.gaslimit miner.gasprice
    miner.maxblobs miner.newpayload-timeout miner.pending.feeRecipient miner.recommit nat networkid nodekey
    nodekeyhex nodiscover nousb p2p.gossip.mesh.floodpublish p2p.mux p2p.ping p2p.score.bands p2p.scoring.peers
    p2p.scoring.topics p2p.security p2p.timeout.accept p2p.timeout.dial p2p.timeout.negotiation p2p.useragent
    password pcscdpath port pprof pprof.addr pprof.blockprofilerate pprof.cpuprofile pprof.enabled
    pprof.memprofilerate pprof.path pprof.port pprof.type preload proposer.active-sequencer-check-duration
    proposer.log.color proposer.log.format proposer.log.level proposer.log.pid proposer.metrics.addr
    proposer.metrics.enabled proposer.metrics.port proposer.pprof.addr proposer.pprof.enabled proposer.pprof.path
    proposer.pprof.port proposer.pprof.type proposer.rollup-rpc pyroscope pyroscope.password pyroscope.server pyroscope.tags pyroscope.username remotedb rollup.disabletxpoolgossip rollup.halt
    rollup.load-protocol-versions rollup.superchain-upgrades rollup.txpool.netrestrict
    rollup.txpool.trusted-peers-only rpc.admin-state rpc.enabledeprecatedpersonal rpc.telemetry
    rpc.telemetry.endpoint rpc.telemetry.instance-id rpc.telemetry.password rpc.telemetry.sample-ratio
    rpc.telemetry.tags rpc.telemetry.username signer snapshot snapshotlog.file state.scheme state.size-tracking
    stateless-self-validation supervisor syncmode syncmode.offset-el-safe syncmode.req-resp txlookuplimit
    txpool.journalremotes unlock usb v5disc vmdebug vmtrace vmtrace.jsonconfig vmwitnessstats whitelist
";

/// Options that would do harm if ignored, in addition to [`HARMFUL_OVERRIDES`].
const HARMFUL: [&str; 18] = [
    "altda.enabled",
    "batcher.altda.enabled",
    "conductor.enabled",
    "config",
    "dev",
    "exitwhensynced",
    "holesky",
    "hoodi",
    "interop.rpc.addr",
    "l2.follow.source",
    "mainnet",
    "miner.effectivegaslimit",
    "netrestrict",
    "rollup.interopmempoolfiltering",
    "rollup.interoprpc",
    "sepolia",
    "syncmode",
    "synctarget",
];

/// Overrides of the genesis and of forks that are not OP Stack forks.
const HARMFUL_OVERRIDES: [&str; 6] = [
    "override.bpo1",
    "override.bpo2",
    "override.cancun",
    "override.genesis",
    "override.osaka",
    "override.verkle",
];

fn start(role: Role, options: &[String]) -> Result<Parsed, CliError> {
    let required: &[&str] = match role {
        Role::Batcher => &[
            "--l1-eth-rpc=http://127.0.0.1:1",
            "--l2-eth-rpc=http://127.0.0.1:2",
            "--rollup-rpc=http://127.0.0.1:3",
            "--mnemonic=test test",
            "--hd-path=m/0",
        ],
        Role::Proposer => &[
            "--l1-eth-rpc=http://127.0.0.1:1",
            "--rollup-rpc=http://127.0.0.1:3",
            "--l2oo-address=0x1111111111111111111111111111111111111111",
            "--mnemonic=test test",
            "--hd-path=m/0",
        ],
        Role::Rollup => &["--rollup.config=r.json", "--l2=http://127.0.0.1:1"],
        _ => &["--rollup.config=r.json"],
    };
    let line = ["starling", role.name()].into_iter();
    let line = line.chain(required.iter().copied()).map(str::to_owned);
    parse(line.chain(options.iter().cloned()), &|_| None)
}

/// A valid value that differs from the default.
fn another_value(flag: &Flag) -> &'static str {
    match flag.kind {
        Kind::Bool if flag.default == "true" => "false",
        Kind::Bool => "true",
        Kind::Choice(choices) => choices
            .iter()
            .find(|choice| **choice != flag.default)
            .expect("two choices"),
        Kind::Url => "http://127.0.0.1:1",
        Kind::Ip => "10.1.2.3",
        Kind::Duration => "17s",
        Kind::Size => "17MB",
        Kind::Text
        | Kind::Path
        | Kind::Port
        | Kind::Uint
        | Kind::Float
        | Kind::List
        | Kind::Secret => "17",
    }
}

#[test]
fn no_option_is_ignored_where_that_does_harm() {
    let (mut ignored, mut refused) = (BTreeSet::new(), BTreeSet::new());
    let flags = |role| of_role(role).into_iter().map(move |flag| (role, flag));
    let roles = [
        Role::Node,
        Role::Execution,
        Role::Rollup,
        Role::Batcher,
        Role::Proposer,
    ];
    for (role, flag) in roles.into_iter().flat_map(flags) {
        let name = &flag.name;
        let given = |value: &str| start(role, &[format!("--{name}={value}")]);
        match flag.flag.effect {
            Effect::Works => {}
            Effect::NoEffect(reason) => {
                let parsed = given(another_value(flag.flag))
                    .unwrap_or_else(|error| panic!("{}: {error}", role.name()));
                assert!(
                    parsed
                        .notices
                        .contains(&format!("--{name} has no effect: {reason}")),
                    "{:?}",
                    parsed.notices
                );
                ignored.insert(flag.name);
            }
            Effect::Refused(reason) => {
                let said = given(another_value(flag.flag)).expect_err(name).to_string();
                assert_eq!(said, format!("--{name} is not supported: {reason}"));
                assert!(
                    reason.contains("; "),
                    "--{name}: a cause and a next step: {reason}"
                );
                if !flag.flag.default.is_empty() {
                    assert!(given(flag.flag.default).is_ok(), "the default of --{name}");
                }
                refused.insert(flag.name);
            }
        }
    }
    let (overrides, others): (Vec<&str>, Vec<&str>) = refused
        .iter()
        .map(String::as_str)
        .partition(|name| name.contains("override."));
    assert_eq!(others, HARMFUL);
    assert_eq!(overrides, HARMFUL_OVERRIDES);
    assert_eq!(
        ignored.iter().map(String::as_str).collect::<Vec<_>>(),
        HARMLESS.split_whitespace().collect::<Vec<_>>()
    );
}

/// Every command line of op-node has `--l2`, often with a container's name. An engine on another
/// host gets no blocks from us, which the notice says.
#[test]
fn an_engine_on_another_host_is_accepted_with_a_notice() {
    let foreign = "--l2 names an engine on another host: nothing drives it, the execution core runs in this process";
    for url in [
        "http://127.0.0.1:8551",
        "ws://localhost:8551",
        "http://[::1]:8551/path",
    ] {
        let options = [
            format!("--l2={url}"),
            "--l2.jwt-secret=jwt.txt".into(),
            "--l2.enginekind=reth".into(),
        ];
        let notices = start(Role::Node, &options).expect(url).notices;
        assert_eq!(notices.len(), 3, "{notices:?}");
        assert!(
            notices.iter().all(|notice| notice != foreign),
            "{url}: {notices:?}"
        );
    }
    for url in [
        "http://op-geth:8551",
        "http://10.0.0.2:8551",
        "http://user@engine.example/",
        "http://127.0.0.1.example:1",
    ] {
        let notices = start(Role::Node, &[format!("--l2={url}")])
            .expect(url)
            .notices;
        assert!(
            notices.iter().any(|notice| notice == foreign),
            "{url}: {notices:?}"
        );
    }
}

/// The file may record that an operator has stopped this sequencer. op-node would then not
/// sequence.
#[test]
fn a_sequencer_whose_state_is_kept_in_a_file_is_refused() {
    let state = "--rpc.admin-state=state.json".to_owned();
    assert!(
        start(Role::Node, std::slice::from_ref(&state)).is_ok(),
        "a replica has no such state"
    );
    let key = format!("--p2p.sequencer.key={}", "11".repeat(32));
    let said = start(Role::Node, &[state, "--sequencer.enabled".into(), key])
        .expect_err("a sequencer")
        .to_string();
    assert!(
        said.contains("--rpc.admin-state") && said.contains("--sequencer.stopped"),
        "{said}"
    );
}
