//! Processors that all nodes share, as the nodes of a lab share those of one machine. Work is done in
//! the order in which it comes up, on the first processor that is free.

use super::config::ProcessorLoad;
use std::time::Duration;

/// The processors of the network, with the time in ns until which each is busy.
pub(super) struct ModelProcessors {
    busy: Vec<u64>,
    copy: u64,
    import: u64,
    rest: u64,
}

impl ModelProcessors {
    pub fn new(load: &ProcessorLoad) -> Self {
        let ns = |time: Duration| time.as_nanos() as u64;
        Self {
            busy: vec![0; load.cores as usize],
            copy: ns(load.copy),
            import: ns(load.import),
            rest: ns(load.rest),
        }
    }

    /// Does work that takes `cost` ns, and returns the time of its end.
    pub fn work(&mut self, now: u64, cost: u64) -> u64 {
        let free = self
            .busy
            .iter_mut()
            .min()
            .expect("a checked load has cores");
        *free = now.max(*free) + cost;
        *free
    }

    /// Time at which a copy that arrives now is received.
    pub fn receive(&mut self, now: u64) -> u64 {
        self.work(now, self.copy)
    }

    /// Time at which a block whose check ends now is the head.
    pub fn import(&mut self, now: u64) -> u64 {
        self.work(now, self.import)
    }

    /// Does the work that follows once a block is the head.
    pub fn finish(&mut self, now: u64) {
        self.work(now, self.rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_until_one_of_the_processors_is_free() {
        let mut processors = ModelProcessors::new(&ProcessorLoad {
            cores: 2,
            copy: Duration::from_nanos(10),
            import: Duration::from_nanos(100),
            rest: Duration::from_nanos(7),
        });
        assert_eq!(processors.receive(5), 15);
        assert_eq!(processors.import(5), 105);
        assert_eq!([processors.receive(5), processors.receive(5)], [25, 35]);
        processors.finish(30);
        assert_eq!([processors.receive(30), processors.work(200, 1)], [52, 201]);
    }
}
