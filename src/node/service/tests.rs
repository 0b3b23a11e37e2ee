//! Tests of the order of stopping, with tasks that note the tokens cancelled for them.

use super::*;
use crate::{
    rollup::{
        http_fake::{Canned, CannedServer},
        signer::RemoteConfig,
    },
    secret::Secret,
};
use alloy_primitives::Address;
use parking_lot::Mutex;
use std::sync::Arc;

const LIMIT: Duration = Duration::from_secs(2);

/// The notes of all tasks, in order.
type Notes = Arc<Mutex<Vec<String>>>;

/// A service without transactions whose work takes `work` to finish, unless `ending` cuts it off.
fn service(name: &'static str, work: Duration, notes: &Notes) -> PostingService {
    let service = PostingService::within(name, LIMIT);
    let (tokens, notes) = (service.tokens(), notes.clone());
    service.tasks().spawn(name, async move {
        tokens.closing.cancelled().await;
        notes.lock().push(format!("{name} closes"));
        tokio::select! {
            () = tokens.ending.cancelled() => notes.lock().push(format!("{name} gives up")),
            () = tokio::time::sleep(work) => notes.lock().push(format!("{name} is done")),
        }
        Ok(())
    });
    service
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const LONG: Duration = Duration::from_secs(1_000);
const PAUSES: RestartPauses = RestartPauses {
    first: millis(40),
    longest: millis(200),
};

/// A service that the node starts only once.
fn only(service: PostingService) -> impl AsyncFnOnce(StopSignals) {
    let service = Mutex::new(Some(service));
    async move |signals| {
        let start = |_| std::future::ready(Ok(service.lock().take()));
        keep_running("service", PAUSES, start, signals).await;
    }
}

/// Stands for a service that the node does not have.
async fn nothing(_: StopSignals) {}

#[tokio::test]
async fn the_batcher_stops_first_then_the_proposer_then_the_node() {
    let notes = Notes::default();
    let signals = StopSignals::default();
    let node = CancellationToken::new();
    let batcher = service("batcher", millis(60), &notes);
    let proposer = service("proposer", millis(200), &notes);
    let run = run_in_order(signals.clone(), only(batcher), only(proposer), node.clone());
    let signal = async {
        tokio::time::sleep(millis(20)).await;
        assert!(notes.lock().is_empty() && !node.is_cancelled());
        signals.closing.cancel();
        tokio::time::sleep(millis(100)).await;
        assert!(!node.is_cancelled(), "the proposer is not done");
    };
    tokio::join!(run, signal);
    assert!(node.is_cancelled());
    assert_eq!(
        *notes.lock(),
        [
            "batcher closes",
            "batcher is done",
            "proposer closes",
            "proposer is done"
        ]
    );
}

#[tokio::test]
async fn a_batcher_that_waits_too_long_for_l1_is_ended() {
    let notes = Notes::default();
    let signals = StopSignals::default();
    let node = CancellationToken::new();
    let batcher = service("batcher", LONG, &notes);
    signals.closing.cancel();
    let started = tokio::time::Instant::now();
    run_in_order(signals, only(batcher), nothing, node.clone()).await;
    assert!(started.elapsed() >= LIMIT);
    assert_eq!(*notes.lock(), ["batcher closes", "batcher gives up"]);
    assert!(node.is_cancelled());
}

#[tokio::test]
async fn a_second_signal_ends_the_waiting() {
    let notes = Notes::default();
    let signals = StopSignals::default();
    let batcher = service("batcher", LONG, &notes);
    signals.closing.cancel();
    let started = tokio::time::Instant::now();
    let second = async {
        tokio::time::sleep(millis(30)).await;
        signals.ending.cancel();
    };
    let run = batcher.run(&signals.closing, &signals.ending);
    let (ended, ()) = tokio::join!(run, second);
    assert!(ended.is_ok());
    assert!(started.elapsed() < LIMIT);
    assert_eq!(*notes.lock(), ["batcher closes", "batcher gives up"]);
}

#[tokio::test]
async fn a_node_outlives_a_batcher_that_fails_and_starts_it_again() {
    let notes = Notes::default();
    let signals = StopSignals::default();
    let node = CancellationToken::new();
    let starts = Mutex::new(Vec::new());
    // The service fails to start, then fails while it runs, and then runs.
    let start = |before: u64| {
        starts.lock().push(tokio::time::Instant::now());
        let count = starts.lock().len();
        assert_eq!(before + 1, count as u64);
        let service = match count {
            1 => Err(anyhow!("the signer: 401 Unauthorized")),
            2 => {
                let batcher = PostingService::within("batcher", LIMIT);
                batcher.tasks().spawn("batcher", async {
                    tokio::time::sleep(millis(10)).await;
                    anyhow::bail!("another process uses this key")
                });
                Ok(Some(batcher))
            }
            _ => Ok(Some(service("batcher", millis(10), &notes))),
        };
        std::future::ready(service)
    };
    let batcher = async |signals| keep_running("batcher", PAUSES, start, signals).await;
    let proposer = only(service("proposer", millis(10), &notes));
    let run = run_in_order(signals.clone(), batcher, proposer, node.clone());
    let signal = async {
        tokio::time::sleep(millis(400)).await;
        assert!(notes.lock().is_empty() && !node.is_cancelled());
        signals.closing.cancel();
    };
    tokio::join!(run, signal);
    let all = [
        "batcher closes",
        "batcher is done",
        "proposer closes",
        "proposer is done",
    ];
    assert_eq!(*notes.lock(), all);
    let starts = starts.lock();
    assert_eq!(starts.len(), 3);
    let pauses: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        pauses[0] >= PAUSES.first && pauses[1] >= 2 * PAUSES.first,
        "{pauses:?}"
    );
    assert!(node.is_cancelled());
}

#[tokio::test]
async fn a_process_ends_with_the_failure_of_its_service() {
    let signals = StopSignals::default();
    let service = PostingService::within("batcher", LIMIT);
    service
        .tasks()
        .spawn("throttling", async { anyhow::bail!("no such method") });
    let ended = service.run(&signals.closing, &signals.ending).await;
    let said = crate::telemetry::sentence(&ended.unwrap_err());
    assert_eq!(said, "throttling has failed: no such method");
}

/// If the node fails, for example because of its database, its services do not wait for L1.
#[tokio::test]
async fn a_node_that_fails_ends_its_services_at_once() {
    let notes = Notes::default();
    let node = CancellationToken::new();
    let batcher = service("batcher", LONG, &notes);
    let proposer = service("proposer", LONG, &notes);
    let started = tokio::time::Instant::now();
    let failure = async {
        tokio::time::sleep(millis(30)).await;
        node.cancel();
    };
    let signals = StopSignals::default();
    let run = run_in_order(signals, only(batcher), only(proposer), node.clone());
    tokio::join!(run, failure);
    assert!(started.elapsed() < LIMIT);
    let notes = notes.lock();
    assert!(notes.contains(&"batcher gives up".to_owned()), "{notes:?}");
    assert!(notes.contains(&"proposer gives up".to_owned()), "{notes:?}");
}

#[tokio::test]
async fn an_upstream_that_comes_late_is_waited_for() {
    let attempts = Mutex::new(0);
    let attempt = || {
        let mut attempts = attempts.lock();
        *attempts += 1;
        std::future::ready(match *attempts {
            ..4 => Err("connection refused"),
            _ => Ok(7),
        })
    };
    let token = CancellationToken::new();
    let waited = wait_with("L1", &token, millis(5), attempt).await;
    assert_eq!((waited, *attempts.lock()), (Some(7), 4));
    token.cancel();
    let never = || std::future::ready(Err::<(), _>("connection refused"));
    assert_eq!(wait_for("L1", &token, never).await, None);
}

#[tokio::test]
async fn a_signer_that_is_away_is_waited_for_and_a_wrong_key_is_not() {
    let remote = |url: &str| {
        TxSignerConfig::Remote(RemoteConfig {
            endpoint: Secret::new(url),
            address: Address::repeat_byte(1),
            headers: vec![],
            tls: None,
            timeout: millis(200),
        })
    };
    // No process listens on port 1.
    let away = remote("http://127.0.0.1:1");
    let token = CancellationToken::new();
    let opened = tokio::time::timeout(millis(500), open_signer(&away, &token));
    assert!(opened.await.is_err(), "it waits");
    // The proxy before the signer responds with an error.
    for status in [502, 503, 429] {
        let proxy = CannedServer::start(move |_| Canned::status(status, "")).await;
        let opened = async { open_signer(&remote(&proxy.url()), &token).await };
        let opened = tokio::time::timeout(millis(500), opened).await;
        assert!(opened.is_err(), "{status}: it waits");
        assert!(proxy.count() > 0);
    }
    let wrong = TxSignerConfig::Key(Secret::new("0x12"));
    let said = open_signer(&wrong, &token).await.expect_err("no signer");
    let said = crate::telemetry::sentence(&said);
    assert!(said.contains("failed to parse the private key"), "{said}");
    token.cancel();
    let opened = open_signer(&away, &token).await;
    assert!(matches!(opened, Ok(None)));
}
