//! Short work that reads memory only, for threads that must not wait.
//!
//! JSON-RPC answers most small requests on the task of their connection, since handing one to
//! another thread takes longer than the work itself. Such work runs as an [`attempt`]. Within it,
//! code that is about to read the disk, or to work for long, asks [`refuses`] first and returns an
//! error if it does. The attempt then has no result, and the caller repeats the work on a thread
//! that may block.
//!
//! A thread-local variable marks the attempt, because its reads are many calls below it. Its work
//! never awaits.

use std::cell::Cell;

thread_local! {
    static ATTEMPT: Cell<AttemptState> = const { Cell::new(AttemptState::None) };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptState {
    /// This thread may block.
    None,
    Running,
    /// The attempt needed the disk or much time.
    Refused,
}

/// Ends the attempt of this thread when dropped, also if its work panics.
struct EndOnDrop;

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        ATTEMPT.set(AttemptState::None);
    }
}

/// The result of `work`; `None` if a part of it was refused. The work must have no side effects,
/// because it is repeated then.
pub fn attempt<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _end = EndOnDrop;
    ATTEMPT.set(AttemptState::Running);
    let result = work();
    (ATTEMPT.get() == AttemptState::Running).then_some(result)
}

/// Whether this thread must neither read the disk nor work for long. If so, the attempt that runs
/// here has failed, whatever its work returns.
pub fn refuses() -> bool {
    let refuses = ATTEMPT.get() != AttemptState::None;
    if refuses {
        ATTEMPT.set(AttemptState::Refused);
    }
    refuses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_whose_work_was_refused_has_no_result() {
        assert!(!refuses(), "no attempt");
        assert_eq!(attempt(|| 1), Some(1));
        let swallowed = attempt(|| if refuses() { 0 } else { 1 });
        assert_eq!(swallowed, None);
        assert!(!refuses(), "the attempt has ended");
    }

    #[test]
    fn a_panic_ends_the_attempt() {
        let panicked = std::panic::catch_unwind(|| attempt(|| panic!("a toy that breaks")));
        assert!(panicked.is_err() && !refuses());
    }
}
