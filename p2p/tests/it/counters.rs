//! A recorder of counters. A process has one recorder and runs tests in parallel, so a counter may
//! include events of other tests.

use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

/// The value of a counter of this process, recorded as "name{label value}".
pub fn counter(name: &str, label: &str) -> u64 {
    RECORDER
        .counts
        .lock()
        .get(&(name.to_owned(), label.to_owned()))
        .map_or(0, |count| *count.0.lock())
}

pub fn count_metrics() {
    LazyLock::force(&RECORDER);
}

static RECORDER: LazyLock<&'static Recorder> = LazyLock::new(|| {
    let recorder: &'static Recorder = Box::leak(Box::default());
    metrics::set_global_recorder(recorder).unwrap();
    recorder
});

#[derive(Default)]
struct Recorder {
    counts: Mutex<HashMap<(String, String), Arc<Count>>>,
}

#[derive(Default)]
struct Count(Mutex<u64>);

impl metrics::CounterFn for Count {
    fn increment(&self, value: u64) {
        *self.0.lock() += value;
    }
    fn absolute(&self, value: u64) {
        *self.0.lock() = value;
    }
}

impl metrics::Recorder for &'static Recorder {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        let label = key
            .labels()
            .next()
            .map_or("", |label| label.value())
            .to_owned();
        let count = self
            .counts
            .lock()
            .entry((key.name().to_owned(), label))
            .or_default()
            .clone();
        metrics::Counter::from_arc(count)
    }
    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::noop()
    }
    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}
