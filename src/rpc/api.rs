//! The table of methods that an endpoint serves: method name → plain function, bound to the node it reads.
//!
//! The kind of a method says what it may cost. [`Method::Read`] and [`Method::Heavy`] run on the blocking pool, each kind behind
//! its own bound, so that slow calls cannot starve cheap ones and none of them occupies a worker of the runtime.

use super::{
    RpcContext,
    error::{Reply, RpcError},
    eth::logs::LogLimits,
    frame::crashed,
    params::Args,
};
use crate::chain::evm::{Deadline, RPC_GAS_CAP, StateError};
use futures::{FutureExt, future::BoxFuture, stream::BoxStream};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, time::timeout};

/// Reads at once, for each core. A read takes microseconds, and most of them do not wait for the disk: more at once would only take
/// turns with the executor.
const READS: usize = 4;
/// How long a heavy call may take, waiting included, if nothing else is said (geth's `--rpc.evmtimeout`).
pub const HEAVY_TIMEOUT: Duration = Duration::from_secs(5);

/// A method's implementation.
#[derive(Clone, Copy)]
pub enum Method {
    /// Answers from memory.
    Quick(fn(&RpcContext, Args) -> Reply),
    /// Reads the store.
    Read(fn(&RpcContext, Args) -> Reply),
    /// Runs the EVM or scans many blocks. The caller is told when [`Bounds::timeout`] is over; the work looks at its deadline, which
    /// also passes when the caller has gone, so that neither keeps its place.
    Heavy(fn(&RpcContext, Args, &Deadline) -> Reply),
    /// Waits for something else than the chain.
    Async(fn(Arc<RpcContext>, Args) -> BoxFuture<'static, Reply>),
}

/// The events of a subscription. It ends when its subscriber can no longer be told everything: the connection is then dropped.
pub type EventStream = BoxStream<'static, Box<RawValue>>;
/// Begins a subscription of one kind.
pub type Subscribe = fn(&Arc<RpcContext>, Args) -> Result<EventStream, RpcError>;

/// What `--http.api` can name.
pub struct Namespace {
    pub name: &'static str,
    pub methods: &'static [(&'static str, Method)],
    pub subscriptions: &'static [(&'static str, Subscribe)],
}

type Bound<T> = Box<dyn Fn(Args) -> T + Send + Sync>;

/// The methods of one endpoint.
#[derive(Default)]
pub struct Api {
    methods: HashMap<&'static str, Bound<BoxFuture<'static, Reply>>>,
    subscriptions: HashMap<(&'static str, &'static str), Bound<Result<EventStream, RpcError>>>,
    namespaces: BTreeSet<&'static str>,
}

impl Api {
    /// The methods of the namespaces named, and `rpc_modules`. Names that nobody knows are logged and left out, as geth does.
    pub fn new(names: &[String], known: &'static [Namespace], context: &Arc<RpcContext>, flag: &str) -> Self {
        let mut api = Self::default();
        for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
            match known.iter().find(|namespace| namespace.name == name) {
                Some(namespace) => api.add(namespace, context),
                None => tracing::warn!(name, flag, "unknown API namespace left out"),
            }
        }
        api.namespaces.insert("rpc");
        let modules: BTreeMap<&str, &str> = api.namespaces.iter().map(|name| (*name, "1.0")).collect();
        api.insert("rpc_modules", move |args| {
            let modules = modules.clone();
            async move {
                args.at_most(0)?;
                super::error::reply(modules)
            }
            .boxed()
        });
        api
    }

    fn add(&mut self, namespace: &'static Namespace, context: &Arc<RpcContext>) {
        self.namespaces.insert(namespace.name);
        for (name, method) in namespace.methods {
            self.insert(name, bind(name, *method, context.clone()));
        }
        for (kind, subscribe) in namespace.subscriptions {
            let (subscribe, context) = (*subscribe, context.clone());
            self.insert_subscription(namespace.name, kind, move |args| subscribe(&context, args));
        }
    }

    /// Adds or replaces one kind of subscription.
    pub fn insert_subscription(
        &mut self,
        namespace: &'static str,
        kind: &'static str,
        subscribe: impl Fn(Args) -> Result<EventStream, RpcError> + Send + Sync + 'static,
    ) {
        self.subscriptions.insert((namespace, kind), Box::new(subscribe));
    }

    /// Adds or replaces one method.
    pub fn insert(&mut self, name: &'static str, method: impl Fn(Args) -> BoxFuture<'static, Reply> + Send + Sync + 'static) {
        self.methods.insert(name, Box::new(method));
    }

    pub fn method(&self, name: &str) -> Option<&Bound<BoxFuture<'static, Reply>>> {
        self.methods.get(name)
    }

    /// Whether `<namespace>_subscribe` exists.
    pub fn has_subscriptions(&self, namespace: &str) -> bool {
        self.subscriptions.keys().any(|(known, _)| *known == namespace)
    }

    pub fn subscription(&self, namespace: &str, kind: &str) -> Option<&Bound<Result<EventStream, RpcError>>> {
        let key = self.subscriptions.keys().find(|(n, k)| *n == namespace && *k == kind)?;
        self.subscriptions.get(key)
    }
}

/// The bounds on work that all endpoints share.
pub struct Bounds {
    pub(super) reads: Arc<Semaphore>,
    pub(super) heavy: Arc<Semaphore>,
    /// KiB of events that wait for their subscribers.
    pub(super) events: Arc<Semaphore>,
    /// KiB of filters and of the logs they remember.
    pub(super) filters: Arc<Semaphore>,
    /// Of a heavy call (`--rpc.evmtimeout`).
    pub timeout: Duration,
    /// Gas of one run of the EVM (`--rpc.gascap`).
    pub gas_cap: u64,
    pub logs: LogLimits,
    /// Bytes of the pool's transactions in one answer, which holds them as hexadecimal digits.
    pub transactions: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            reads: Arc::new(Semaphore::new(READS * cores.max(2))),
            heavy: Arc::new(Semaphore::new(cores.max(2))),
            events: Arc::new(Semaphore::new(64 << 10)),
            filters: Arc::new(Semaphore::new(64 << 10)),
            timeout: HEAVY_TIMEOUT,
            gas_cap: RPC_GAS_CAP,
            logs: LogLimits::default(),
            transactions: 10_000_000,
        }
    }
}

fn bind(
    name: &'static str,
    method: Method,
    context: Arc<RpcContext>,
) -> impl Fn(Args) -> BoxFuture<'static, Reply> + Send + Sync + 'static {
    move |args| {
        let context = context.clone();
        match method {
            Method::Quick(function) => async move { function(&context, args) }.boxed(),
            Method::Async(function) => function(context, args),
            Method::Read(function) => {
                let place = context.bounds.reads.clone();
                blocking(name, place, move || function(&context, args)).boxed()
            }
            Method::Heavy(function) => {
                let place = context.bounds.heavy.clone();
                let deadline = Deadline::after(context.bounds.timeout);
                within(deadline.clone(), blocking(name, place, move || function(&context, args, &deadline))).boxed()
            }
        }
    }
}

/// Waits for work until its deadline, which passes at once when nobody waits any more.
async fn within(deadline: Deadline, work: impl Future<Output = Reply>) -> Reply {
    let _waiting = deadline.waiting();
    let late = |_| Err(StateError::Aborted(deadline.limit()).into());
    timeout(deadline.limit(), work).await.unwrap_or_else(late)
}

/// Runs a function on the blocking pool once there is a place for it. The function keeps its place until it returns, even if
/// nobody waits for it any more.
pub async fn blocking<T: Send + 'static>(
    name: &'static str,
    places: Arc<Semaphore>,
    function: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let Ok(place) = places.acquire_owned().await else { return Err(RpcError::server("the server is stopping")) };
    let work = tokio::task::spawn_blocking(move || {
        let _place = place;
        function()
    });
    work.await.unwrap_or_else(|_| Err(crashed(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::error::reply;

    const LONG: Duration = Duration::from_secs(600);

    /// Work that looks at its deadline as heavy methods do.
    fn endless(places: &Arc<Semaphore>, limit: Duration) -> impl Future<Output = Reply> + use<> {
        let deadline = Deadline::after(limit);
        let looking = deadline.clone();
        within(
            deadline,
            blocking("toy", places.clone(), move || {
                loop {
                    looking.check()?;
                    std::thread::yield_now();
                }
            }),
        )
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_that_takes_too_long_is_told_so_and_gives_back_its_place() {
        let places = Arc::new(Semaphore::new(1));
        let error = endless(&places, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (-32000, "execution aborted (timeout = 50ms)"));
        let next = within(Deadline::after(LONG), blocking("toy", places, || reply(3))).await;
        assert_eq!(next.unwrap().get(), "3");
        assert_eq!(format!("{HEAVY_TIMEOUT:?}"), "5s");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_whose_client_has_gone_gives_back_its_place() {
        let places = Arc::new(Semaphore::new(1));
        let call = tokio::spawn(endless(&places, LONG));
        while places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        call.abort();
        let next = within(Deadline::after(LONG), blocking("toy", places, || reply(4))).await;
        assert_eq!(next.unwrap().get(), "4");
    }

    #[tokio::test]
    async fn a_call_that_finds_no_place_in_time_is_told_so_and_never_runs() {
        let places = Arc::new(Semaphore::new(1));
        let taken = places.clone().acquire_owned().await.unwrap();
        let (run, ran) = std::sync::mpsc::channel();
        let late = blocking("toy", places.clone(), move || {
            let _ = run.send(());
            reply(1)
        });
        let error = within(Deadline::after(Duration::from_millis(50)), late).await.unwrap_err();
        assert!(error.message.starts_with("execution aborted"));
        drop(taken);
        assert!(blocking("toy", places, || reply(2)).await.is_ok());
        assert!(ran.try_recv().is_err());
    }

    #[tokio::test]
    async fn a_crash_on_the_blocking_pool_is_an_error() {
        let places = Arc::new(Semaphore::new(1));
        let error = blocking::<()>("toy", places.clone(), || panic!("a toy that breaks")).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (-32603, "method handler crashed"));
        assert_eq!(places.available_permits(), 1);
    }
}
