use super::*;
use crate::rpc::error::reply;
use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

const LONG: Duration = Duration::from_secs(600);

fn connection(n: u64) -> Client {
    Client::Connection(n)
}

/// Work that checks its deadline like a heavy method, and runs until the check fails.
fn endless(deadline: &Deadline) -> Reply {
    loop {
        deadline.check()?;
        std::thread::yield_now();
    }
}

async fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The path of `only_calls_of_public_ports_run_at_low_priority`.
#[cfg(target_os = "linux")]
const PRIORITIES: &str = "rpc::heavy::tests::only_calls_of_public_ports_run_at_low_priority";

/// In the process of all tests, another test may have started rayon's threads. So the test of
/// priorities runs in a process of its own, too.
#[cfg(target_os = "linux")]
#[test]
fn a_heavy_call_that_is_the_first_to_use_rayon_does_not_lower_its_priority() {
    let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
    let ended = alone.args([PRIORITIES, "--exact"]).output().unwrap();
    let output = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

/// Block execution uses rayon's threads, so these must not have the priority of a heavy call.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn only_calls_of_public_ports_run_at_low_priority() {
    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }
    let (normal, heavy) = (niceness(), Heavy::new(2));
    let of = async |client| {
        let work = |_: &Deadline| reply(niceness());
        let reply = heavy.run("toy", client, Deadline::after(LONG), work).await;
        reply.unwrap().get().parse::<i32>().unwrap()
    };
    let low = (normal + 10).min(19);
    assert_eq!(of(connection(1)).await, low);
    assert_eq!(of(Client::Local(1)).await, low);
    assert_eq!(of(Client::RollupNode(1)).await, normal);
    let traced = heavy.trace("toy", connection(1), Deadline::after(LONG), |_, _| {
        let rayon = rayon::broadcast(|_| niceness());
        Ok((niceness(), rayon))
    });
    let (trace, rayon) = traced.await.unwrap();
    assert_eq!(trace, low);
    assert!(
        rayon.iter().all(|niceness| *niceness == normal),
        "{rayon:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_is_told_so_and_gives_back_its_permit() {
    let heavy = Heavy::new(1);
    let error = heavy
        .run(
            "toy",
            connection(1),
            Deadline::after(Duration::from_millis(50)),
            endless,
        )
        .await
        .unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (-32000, "execution aborted (timeout = 50ms)")
    );
    let next = heavy
        .run("toy", connection(1), Deadline::after(LONG), |_| reply(3))
        .await;
    assert_eq!(next.unwrap().get(), "3");
    assert_eq!(format!("{:?}", crate::rpc::bounds::HEAVY_TIMEOUT), "5s");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_clients_have_gone_give_back_their_permits_and_threads_running_or_paused() {
    let heavy = Arc::new(Heavy::new(1));
    let calls: Vec<_> = (0..3)
        .map(|n| {
            let heavy = heavy.clone();
            tokio::spawn(async move {
                heavy
                    .run("toy", connection(n), Deadline::after(LONG), endless)
                    .await
            })
        })
        .collect();
    // One call runs; the others have run before and are paused.
    let queue = heavy.queue(connection(0)).clone();
    wait_until(|| queue.state.lock().scheduler.started() == 3).await;
    calls.iter().for_each(|call| call.abort());
    wait_until(|| queue.free() == 1).await;
    wait_until(|| {
        queue.state.lock().slots.is_empty() && queue.state.lock().scheduler.started() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_finds_no_permit_in_time_is_told_so_and_never_runs() {
    let heavy = Arc::new(Heavy::new(1));
    let (end, ended) = mpsc::sync_channel::<()>(0);
    let ended = Mutex::new(ended);
    let first = heavy.clone();
    // The work does not check its deadline.
    let first = tokio::spawn(async move {
        let work = move |_: &Deadline| {
            let _ = ended.lock().recv();
            reply(1)
        };
        first
            .run("toy", connection(1), Deadline::after(LONG), work)
            .await
    });
    wait_until(|| heavy.queue(connection(1)).free() == 0).await;
    let ran = Arc::new(AtomicBool::new(false));
    let run = ran.clone();
    let late = move |_: &Deadline| {
        run.store(true, Ordering::Relaxed);
        reply(2)
    };
    let error = heavy
        .run(
            "toy",
            connection(2),
            Deadline::after(Duration::from_millis(50)),
            late,
        )
        .await
        .unwrap_err();
    assert!(error.message.starts_with("execution aborted"));
    // The rollup node has permits of its own.
    let engine = heavy
        .run("toy", Client::RollupNode(3), Deadline::after(LONG), |_| {
            reply(4)
        })
        .await;
    assert_eq!(engine.unwrap().get(), "4");
    drop(end);
    assert_eq!(first.await.unwrap().unwrap().get(), "1");
    assert!(!ran.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_call_is_answered_while_more_endless_calls_wait_than_may_be_started() {
    let heavy = Arc::new(Heavy::new(2));
    let calls: Vec<_> = (0..2 * STARTED as u64)
        .map(|n| {
            let heavy = heavy.clone();
            tokio::spawn(async move {
                heavy
                    .run("toy", connection(n), Deadline::after(LONG), endless)
                    .await
            })
        })
        .collect();
    let queue = heavy.queue(connection(0)).clone();
    wait_until(|| queue.state.lock().scheduler.started() == STARTED).await;
    for n in 0..20 {
        let response = heavy
            .run("toy", connection(1000), Deadline::after(LONG), move |_| {
                reply(n)
            })
            .await;
        assert_eq!(response.unwrap().get(), n.to_string());
    }
    calls.iter().for_each(|call| call.abort());
    wait_until(|| queue.state.lock().slots.is_empty()).await;
    assert_eq!(queue.free(), 2);
}

#[tokio::test]
async fn a_call_that_crashes_is_an_error_and_gives_back_its_permit() {
    let heavy = Heavy::new(1);
    let error = heavy
        .run("toy", connection(1), Deadline::after(LONG), |_| {
            panic!("a toy that breaks")
        })
        .await
        .unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (-32603, "method handler crashed")
    );
    assert_eq!(heavy.queue(connection(1)).free(), 1);
}

#[test]
fn a_call_that_only_waits_lets_another_run() {
    let queue = Arc::new(CallQueue::new(
        Capacity {
            permits: 1,
            started: 2,
        },
        CallThreads::Normal,
    ));
    let [first, second] = [1, 2].map(|n| ScheduledCall::enter(queue.clone(), connection(n)));
    let attempt = Arc::new(Attempt {
        id: first.id,
        queue,
        slot: first.slot.clone(),
        over: OnceLock::new(),
        begun: OnceLock::new(),
        charged: Mutex::default(),
        extended: OnceLock::from(Instant::now()),
    });
    let runs = |call: &ScheduledCall| *call.slot.state.lock() != CallState::Waiting;
    assert!(runs(&first) && !runs(&second));
    StartedCall(attempt.clone()).end_slice();
    // The running call never releases its permit, so `on_check` waits until its deadline.
    let deadline = Deadline::after(Duration::from_millis(20));
    assert!(attempt.on_check(&deadline, Instant::now()));
    assert!(!runs(&first) && runs(&second));
}

#[test]
fn a_thread_that_waited_for_a_core_keeps_its_first_slice() {
    let queue = Arc::new(CallQueue::new(
        Capacity {
            permits: 1,
            started: 1,
        },
        CallThreads::Normal,
    ));
    let call = ScheduledCall::enter(queue.clone(), connection(1));
    let attempt = Attempt {
        id: call.id,
        queue,
        slot: call.slot.clone(),
        over: OnceLock::new(),
        begun: OnceLock::new(),
        charged: Mutex::default(),
        extended: OnceLock::new(),
    };
    let begun = *attempt.begun.get_or_init(thread_time);
    let end = Instant::now();
    assert!(attempt.was_delayed(end + FIRST_SLICE, end));
    assert!(
        !attempt.was_delayed(end + SLICE, end),
        "a call that waits for the disk does not hold its permit for long"
    );
    let later = end + 2 * SLICE;
    assert!(
        !attempt.was_delayed(later, later),
        "one slice of an attempt is extended"
    );
    while thread_time() < begun + FIRST_SLICE {
        std::hint::spin_loop();
    }
    assert!(!attempt.was_delayed(end + FIRST_SLICE, end));
}

#[tokio::test]
async fn a_client_is_charged_for_processor_time_only() {
    let heavy = Heavy::new(1);
    let charged = |client| heavy.queue(client).state.lock().scheduler.used(client);
    let [asleep, busy] = [1, 2].map(connection);
    let nap = 4 * SLICE;
    let sleeps = move |_: &Deadline| {
        std::thread::sleep(nap);
        reply(0)
    };
    let slept = heavy.run("toy", asleep, Deadline::after(LONG), sleeps);
    assert!(slept.await.is_ok());
    assert!(charged(asleep) < nap / 2, "{:?}", charged(asleep));
    // Two slices with a check in between, at whose end the client is charged for the first time.
    let spins = |deadline: &Deadline| {
        for _ in 0..2 {
            let end = thread_time() + SLICE;
            while thread_time() < end {
                std::hint::spin_loop();
            }
            deadline.check()?;
        }
        reply(0)
    };
    let spun = heavy.run("toy", busy, Deadline::after(LONG), spins);
    assert!(spun.await.is_ok());
    let range = 2 * SLICE..3 * SLICE;
    assert!(range.contains(&charged(busy)), "{:?}", charged(busy));
}
