//! Warnings that were logged, so that each cause is logged once and not with every poll. Pure; used
//! by the batcher's task.

use std::collections::BTreeMap;

/// The last cause of each sentence whose trouble is not over.
#[derive(Debug, Default)]
pub struct WarningLog {
    causes: BTreeMap<&'static str, String>,
}

impl WarningLog {
    /// Whether the sentence is to be logged: not if its last cause was the same.
    pub fn is_new(&mut self, sentence: &'static str, cause: &str) -> bool {
        let last = self.causes.insert(sentence, cause.to_owned());
        last.is_none_or(|last| last != cause)
    }

    /// The trouble behind a sentence is over: the next time it is logged again.
    pub fn is_over(&mut self, sentence: &'static str) {
        self.causes.remove(sentence);
    }

    /// All trouble is over but that behind `sentence`.
    pub fn is_over_but(&mut self, sentence: &'static str) {
        self.causes.retain(|known, _| *known == sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_logged_once_until_its_trouble_is_over() {
        let mut log = WarningLog::default();
        assert!(log.is_new("no L1", "refused"));
        // Two sentences in turn, as when L1 and L2 are away.
        assert!(log.is_new("no L2", "refused"));
        assert!(!log.is_new("no L1", "refused"));
        assert!(!log.is_new("no L2", "refused"));
        assert!(log.is_new("no L2", "no answer in time"));
        log.is_over_but("no L1");
        assert!(!log.is_new("no L1", "refused"), "L1 is away still");
        assert!(log.is_new("no L2", "no answer in time"));
        log.is_over("no L1");
        assert!(log.is_new("no L1", "refused"));
    }
}
