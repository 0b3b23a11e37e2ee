//! The table of methods that an endpoint serves: method name → plain function, bound to the node it reads.
//!
//! The kind of a method says what it may cost. [`Method::Read`] and [`Method::Heavy`] run on the blocking pool, each kind behind
//! its own bound, so that slow calls cannot starve cheap ones and none of them occupies a worker of the runtime.

use super::{
    RpcContext,
    error::{Reply, RpcError},
    frame::crashed,
    params::Args,
};
use futures::{FutureExt, future::BoxFuture, stream::BoxStream};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::Semaphore, time::timeout};

/// Reads at once. A read takes microseconds; more at once than this only queue at the disk.
const READS: usize = 64;
/// How long a heavy call may take, waiting included (geth's `--rpc.evmtimeout`).
pub const HEAVY_TIMEOUT: Duration = Duration::from_secs(5);

/// A method's implementation.
#[derive(Clone, Copy)]
pub enum Method {
    /// Answers from memory.
    Quick(fn(&RpcContext, Args) -> Reply),
    /// Reads the store.
    Read(fn(&RpcContext, Args) -> Reply),
    /// Runs the EVM or scans many blocks. The caller is told after [`HEAVY_TIMEOUT`]; the work itself keeps its place until done.
    Heavy(fn(&RpcContext, Args) -> Reply),
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
    heavy: Arc<Semaphore>,
}

impl Default for Bounds {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self { reads: Arc::new(Semaphore::new(READS)), heavy: Arc::new(Semaphore::new(cores.max(2))) }
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
                let work = blocking(name, place, move || function(&context, args));
                within(HEAVY_TIMEOUT, work).boxed()
            }
        }
    }
}

async fn within(limit: Duration, work: impl Future<Output = Reply>) -> Reply {
    let late = |_| Err(RpcError::server(format!("execution aborted (timeout = {limit:?})")));
    timeout(limit, work).await.unwrap_or_else(late)
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
    use std::{sync::mpsc, time::Duration};

    #[tokio::test]
    async fn a_call_that_takes_too_long_is_told_so_and_keeps_its_place() {
        let places = Arc::new(Semaphore::new(1));
        let (go, wait) = mpsc::channel::<()>();
        let slow = blocking("toy", places.clone(), move || {
            let _ = wait.recv();
            reply(1)
        });
        let error = within(Duration::from_millis(50), slow).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (-32000, "execution aborted (timeout = 50ms)"));
        assert_eq!(places.available_permits(), 0);
        // The next one waits for the place and is told so too.
        let next = within(Duration::from_millis(50), blocking("toy", places.clone(), || reply(2))).await;
        assert!(next.unwrap_err().message.starts_with("execution aborted"));
        go.send(()).unwrap();
        let next = within(HEAVY_TIMEOUT, blocking("toy", places, || reply(3))).await;
        assert_eq!(next.unwrap().get(), "3");
        assert_eq!(format!("{HEAVY_TIMEOUT:?}"), "5s");
    }

    #[tokio::test]
    async fn a_crash_on_the_blocking_pool_is_an_error() {
        let places = Arc::new(Semaphore::new(1));
        let error = blocking::<()>("toy", places.clone(), || panic!("a toy that breaks")).await.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (-32603, "method handler crashed"));
        assert_eq!(places.available_permits(), 1);
    }
}
