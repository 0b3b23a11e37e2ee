//! The program as a process: how long it runs, and how long a node needs until it responds.

use std::{
    process::Command,
    time::{Duration, Instant},
};

/// Pause between two requests to a node that does not respond yet.
const PAUSE: Duration = Duration::from_millis(1);

/// Time to run the bare program (`--version`).
pub fn time_bare() -> Duration {
    let begun = Instant::now();
    let out = Command::new(env!("CARGO_BIN_EXE_starling"))
        .arg("--version")
        .output()
        .expect("the program runs");
    assert!(out.status.success());
    begun.elapsed()
}

/// The time from `begun` until a node responds, at most `patience`.
pub fn time_to_answer(
    begun: Instant,
    patience: Duration,
    mut answers: impl FnMut() -> bool,
) -> Duration {
    while !answers() {
        assert!(begun.elapsed() < patience, "the node does not answer");
        std::thread::sleep(PAUSE);
    }
    begun.elapsed()
}
