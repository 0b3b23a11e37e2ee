use super::*;
use std::process::{Command, Output};

fn record(binary: &str, test: &str, what: &str) -> SkipRecord {
    SkipRecord {
        run: "7-9".into(),
        binary: binary.into(),
        test: test.into(),
        what: what.into(),
    }
}

#[test]
fn the_closing_line_counts_each_skipped_test_once_by_its_first_reason() {
    assert_eq!(count(&[]), "no test was skipped");
    let mut records = vec![record("it", "a", "cast (npm install)")];
    assert_eq!(
        count(&records),
        "1 test skipped: 1 without cast (npm install)"
    );
    records.extend([
        record("it", "b", "../shared/fixtures"),
        record("it", "b", "cast (npm install)"),
        record("lib", "b", "../shared/fixtures"),
    ]);
    assert_eq!(
        count(&records),
        "3 tests skipped: 2 without ../shared/fixtures, 1 without cast (npm install)"
    );
}

#[test]
fn a_record_is_read_back_as_it_was_written() {
    let written = record("it-1", "module::a_test", "a program (set a variable)");
    assert_eq!(SkipRecord::parse(written.line().trim_end()), Some(written));
    assert_eq!(SkipRecord::parse("half a\tline"), None);
}

/// No test by itself: the test below runs it in a separate process.
#[test]
#[ignore = "started by another test"]
fn without_a_unicorn() {
    require(None::<()>, "a unicorn");
}

#[test]
#[ignore = "started by another test"]
fn without_a_phoenix() {
    optional(None::<()>, "a phoenix");
}

fn child(test: &str, fixtures: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            &format!("tests::{test}"),
            "--exact",
            "--ignored",
            "--test-threads=2",
        ])
        .env_remove("STARLING_FIXTURES");
    command.envs(fixtures.map(|value| ("STARLING_FIXTURES", value)));
    command.output().unwrap()
}

#[test]
fn a_missing_requirement_skips_the_test_or_fails_it_where_it_must_be_met() {
    // The processes are children of this one, so they count as a run of their own, which the
    // summary of the real run leaves out.
    let own = format!("{}-", std::process::id());
    let skipped = |test: &str| {
        let text = fs::read_to_string(record_file()).unwrap_or_default();
        let of_test = |record: &SkipRecord| {
            record.run.starts_with(&own) && record.test == format!("tests::{test}")
        };
        text.lines()
            .filter_map(SkipRecord::parse)
            .filter(of_test)
            .count()
    };
    for (test, what, status_where_required) in [
        ("without_a_unicorn", "a unicorn", false),
        ("without_a_phoenix", "a phoenix", true),
    ] {
        let before = skipped(test);
        let output = child(test, None);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(skipped(test), before + 1);

        let output = child(test, Some("required"));
        assert_eq!(output.status.success(), status_where_required, "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.contains(&format!("finds no {what}")) != status_where_required,
            "{said}"
        );
        assert_eq!(
            skipped(test),
            before + 1 + usize::from(status_where_required)
        );
    }
}

#[test]
fn a_port_is_free_and_handed_out_once() {
    let ports: BTreeSet<u16> = (0..200).map(|_| free_port()).collect();
    assert_eq!(ports.len(), 200);
    let kernels_own = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let last: u16 = kernels_own
        .split_whitespace()
        .last()
        .unwrap()
        .parse()
        .unwrap();
    assert!(ports.iter().all(|port| *port > last), "{ports:?}");

    let next = ports.last().unwrap() + 1;
    let _holder = std::net::TcpListener::bind(("0.0.0.0", next));
    assert_ne!(free_port(), next, "taken");
}
