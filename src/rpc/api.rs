//! The table of methods that an endpoint serves. It maps a method's name to a plain function, bound
//! to the context of its node.
//!
//! A method's kind limits the work that it may do. [`Method::Read`], [`Method::Heavy`] and
//! `Method::Trace` run on the blocking pool, so they occupy no worker of the runtime. Each of these
//! three has its own bound, so slow calls cannot starve cheap ones. Clients share the permits of
//! heavy calls fairly (see [`Heavy`](super::heavy::Heavy)). Small reads and short calls are first
//! attempted on the task of their connection, because handing them to another thread and back takes
//! longer than the work itself ([`memory_only`]).

use super::{
    before_bedrock,
    bounds::blocking,
    chunked::{ChunkedText, chunk_sink},
    context::{LateRollupContext, RollupContext, RpcContext},
    error::{INTERNAL, Reply, RpcError, crashed},
    heavy::StartedCall,
    params::Args,
    schedule::Client,
    subscription::{EventStream, Subscriber},
};
use crate::chain::{
    evm::{Deadline, TraceWriter},
    memory_only,
};
use futures::{FutureExt, future::BoxFuture};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::ready,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::yield_now;

/// Longest time for which a call may occupy the task of its connection, where it delays the other
/// connections of that worker. `eth_call` of a token takes 20 µs, `eth_estimateGas` about 100 µs.
const BRIEF: Duration = Duration::from_micros(500);
/// Largest parameters in bytes of a request that is attempted on the task of its connection:
/// parsing them takes time too.
const BRIEF_PARAMS: usize = 8 << 10;
/// Time of an attempt after which its task lets other tasks run before it goes on.
const YIELD_AFTER: Duration = Duration::from_micros(100);

/// The implementation of a tracing method. It returns the last part of its text, which its writer
/// has not sent yet.
pub type TraceFunction = fn(&RpcContext, Args, &Deadline, TraceWriter) -> Result<String, RpcError>;

/// The implementation of a method.
#[derive(Clone, Copy)]
pub enum Method {
    /// Uses only memory, because it runs on the task of its connection and must not block it.
    Quick(fn(&RpcContext, Args) -> Reply),
    /// Reads the store.
    Read(fn(&RpcContext, Args) -> Reply),
    /// Reads a few rows and returns a small result, without side effects. Runs on the task of its
    /// connection if all rows are in memory, and otherwise like [`Method::Read`].
    Lookup(fn(&RpcContext, Args) -> Reply),
    /// Runs the EVM or scans many blocks, in slices of time. After the timeout
    /// ([`Bounds::timeout`](super::bounds::Bounds::timeout)) the caller gets an error. The method
    /// calls [`Deadline::check`] every few milliseconds. The check may pause the method at the end
    /// of a slice. It fails after the timeout, or when the caller has disconnected. The method may
    /// be restarted, so it must have no side effects.
    Heavy(fn(&RpcContext, Args, &Deadline) -> Reply),
    /// Runs the EVM, mostly for microseconds. Runs on the task of its connection if everything that
    /// it reads is in memory and it ends within [`BRIEF`], and otherwise like [`Method::Heavy`].
    Call(fn(&RpcContext, Args, &Deadline) -> Reply),
    /// Like `Heavy`, in a queue of its own with a longer timeout
    /// ([`Bounds::trace_timeout`](super::bounds::Bounds::trace_timeout)). Over HTTP, a large result
    /// is sent while it is being made.
    Trace(TraceFunction),
    /// Waits for another part of the node, or for another process.
    Async(fn(Arc<RpcContext>, Args) -> BoxFuture<'static, Reply>),
    /// Uses no part of the node, so it is served before a rollup node has a context.
    Plain(fn(Args) -> Reply),
    /// Like [`Method::Quick`], for a rollup node, which may have no chain.
    Rollup(fn(&RollupContext, Args) -> Reply),
    /// Like [`Method::Async`], for a rollup node, which may have no chain.
    RollupAsync(fn(Arc<RollupContext>, Args) -> BoxFuture<'static, Reply>),
}

/// The function that begins the subscriptions of one kind.
#[derive(Clone, Copy)]
pub enum Subscribe {
    /// Uses only memory, like [`Method::Quick`].
    Quick(fn(&Arc<RpcContext>, Args) -> Result<EventStream, RpcError>),
    /// Reads the store, like [`Method::Read`]. Batches of its events are charged to the memory of
    /// the connection's events.
    Read(fn(&Arc<RpcContext>, Args, &Subscriber) -> Result<EventStream, RpcError>),
}

/// A namespace with its methods and kinds of subscriptions.
pub struct Namespace {
    pub name: &'static str,
    pub methods: &'static [(&'static str, Method)],
    pub subscriptions: &'static [(&'static str, Subscribe)],
}

type Begun = BoxFuture<'static, Result<EventStream, RpcError>>;
type BoundSubscription = Box<dyn Fn(Args, Subscriber) -> Begun + Send + Sync>;
type BoundChunked = Box<dyn Fn(Args, Client) -> ChunkedText + Send + Sync>;
type BoundMethod = Box<dyn Fn(Args, Client) -> BoxFuture<'static, Reply> + Send + Sync>;

/// The methods of one endpoint.
#[derive(Default)]
pub struct Api {
    methods: HashMap<&'static str, BoundMethod>,
    /// Tracing methods by name, whose results can be sent in parts.
    chunked: HashMap<&'static str, BoundChunked>,
    subscriptions: HashMap<(&'static str, &'static str), BoundSubscription>,
    namespaces: BTreeSet<&'static str>,
}

impl Api {
    /// The methods of the namespaces in `names`, and `rpc_modules`. Unknown names are logged and
    /// left out, as in geth.
    pub fn new(
        names: &[String],
        known: &'static [Namespace],
        context: &Arc<RpcContext>,
        flag: &str,
    ) -> Self {
        let mut api = Self::default();
        for name in names
            .iter()
            .map(|name| name.trim())
            .filter(|name| !name.is_empty())
        {
            match known.iter().find(|namespace| namespace.name == name) {
                Some(namespace) => api.add(namespace, context),
                None => {
                    let served: Vec<_> = known.iter().map(|namespace| namespace.name).collect();
                    tracing::warn!(
                        name,
                        flag,
                        known = served.join(", "),
                        "unknown API namespace left out"
                    );
                }
            }
        }
        api.add_modules();
        api
    }

    /// The methods of a rollup node without a chain: `rpc_modules`, and those methods of the
    /// namespaces in `names` that need no chain.
    pub fn of_rollup_node(
        names: &[String],
        known: &'static [Namespace],
        context: &LateRollupContext,
    ) -> Self {
        let mut api = Self::default();
        let named = known
            .iter()
            .filter(|namespace| names.iter().any(|name| name == namespace.name));
        for namespace in named {
            api.namespaces.insert(namespace.name);
            for (name, method) in namespace.methods {
                if let Some(method) = bind_rollup(*method, context.clone()) {
                    api.methods.insert(name, method);
                }
            }
        }
        api.add_modules();
        api
    }

    /// The methods of a service that is no node, in its `namespaces`: for now only `rpc_modules`.
    /// The service adds its methods with [`Api::insert`].
    pub fn of_service(namespaces: &[&'static str]) -> Self {
        let mut api = Self::default();
        api.namespaces.extend(namespaces);
        api.add_modules();
        api
    }

    /// Adds `rpc_modules`, which lists the namespaces that have been added so far.
    fn add_modules(&mut self) {
        self.namespaces.insert("rpc");
        let modules: BTreeMap<&str, &str> =
            self.namespaces.iter().map(|name| (*name, "1.0")).collect();
        self.insert("rpc_modules", move |args| {
            let modules = modules.clone();
            async move {
                args.at_most(0)?;
                super::error::reply(modules)
            }
            .boxed()
        });
    }

    fn add(&mut self, namespace: &'static Namespace, context: &Arc<RpcContext>) {
        self.namespaces.insert(namespace.name);
        let rollup = LateRollupContext::from(context.rollup_node());
        for (name, method) in namespace.methods {
            let bound = bind_rollup(*method, rollup.clone())
                .unwrap_or_else(|| bind(name, *method, context.clone()));
            let past = context.historical.as_ref();
            let bound = match past.filter(|past| past.concerns(name)) {
                Some(_) => with_history(name, bound, context.clone()),
                None => bound,
            };
            self.methods.insert(name, bound);
            if let Method::Trace(trace) = method {
                self.chunked
                    .insert(name, bind_chunked(name, *trace, context.clone()));
            }
        }
        for (kind, subscribe) in namespace.subscriptions {
            let bound = bind_subscription(kind, *subscribe, context.clone());
            self.subscriptions.insert((namespace.name, kind), bound);
        }
    }

    /// Adds or replaces one kind of subscription, which begins without reading the store.
    pub fn insert_subscription(
        &mut self,
        namespace: &'static str,
        kind: &'static str,
        subscribe: impl Fn(Args) -> Result<EventStream, RpcError> + Send + Sync + 'static,
    ) {
        let bound: BoundSubscription = Box::new(move |args, _| ready(subscribe(args)).boxed());
        self.subscriptions.insert((namespace, kind), bound);
    }

    /// Adds or replaces one method.
    pub fn insert(
        &mut self,
        name: &'static str,
        method: impl Fn(Args) -> BoxFuture<'static, Reply> + Send + Sync + 'static,
    ) {
        self.methods
            .insert(name, Box::new(move |args, _| method(args)));
    }

    /// Whether this endpoint serves a namespace.
    pub fn serves(&self, namespace: &str) -> bool {
        self.namespaces.contains(namespace)
    }

    pub fn method(&self, name: &str) -> Option<&BoundMethod> {
        self.methods.get(name)
    }

    /// The name of a method as a static string; `None` if the method is not served.
    pub fn name_of(&self, name: &str) -> Option<&'static str> {
        self.methods.get_key_value(name).map(|(name, _)| *name)
    }

    /// The method of this name, if its result can be sent while it is being made.
    pub fn chunked(&self, name: &str) -> Option<&BoundChunked> {
        self.chunked.get(name)
    }

    /// Whether `<namespace>_subscribe` exists.
    pub fn has_subscriptions(&self, namespace: &str) -> bool {
        self.subscriptions
            .keys()
            .any(|(known, _)| *known == namespace)
    }

    pub fn subscription(&self, namespace: &str, kind: &str) -> Option<&BoundSubscription> {
        let key = self
            .subscriptions
            .keys()
            .find(|(n, k)| *n == namespace && *k == kind)?;
        self.subscriptions.get(key)
    }
}

/// Binds a method of a rollup node; `None` for one that needs a chain.
fn bind_rollup(method: Method, context: LateRollupContext) -> Option<BoundMethod> {
    Some(match method {
        Method::Plain(function) => Box::new(move |args, _| async move { function(args) }.boxed()),
        Method::Rollup(function) => Box::new(move |args, _| {
            let context = context.clone();
            async move { function(&*context.get()?, args) }.boxed()
        }),
        Method::RollupAsync(function) => Box::new(move |args, _| match context.get() {
            Ok(context) => function(context, args),
            Err(error) => ready(Err(error)).boxed(),
        }),
        Method::Quick(_)
        | Method::Read(_)
        | Method::Lookup(_)
        | Method::Heavy(_)
        | Method::Call(_)
        | Method::Trace(_)
        | Method::Async(_) => return None,
    })
}

/// Binds a method whose result may be in the history before the first block: that history is
/// queried first.
fn with_history(name: &'static str, bound: BoundMethod, context: Arc<RpcContext>) -> BoundMethod {
    let bound = Arc::new(bound);
    Box::new(move |args, client| {
        let (bound, context) = (bound.clone(), context.clone());
        async move {
            if let Some(reply) = before_bedrock::forward(&context, name, &args).await {
                return reply;
            }
            bound(args, client).await
        }
        .boxed()
    })
}

fn bind_subscription(
    kind: &'static str,
    subscribe: Subscribe,
    context: Arc<RpcContext>,
) -> BoundSubscription {
    Box::new(move |args, subscriber| {
        let context = context.clone();
        match subscribe {
            Subscribe::Quick(function) => async move { function(&context, args) }.boxed(),
            Subscribe::Read(function) => {
                let permits = context.bounds.reads.clone();
                let work = move || function(&context, args, &subscriber);
                blocking(kind, permits, work).boxed()
            }
        }
    })
}

/// Runs a method that reads the store on the blocking pool.
async fn read(
    name: &'static str,
    function: fn(&RpcContext, Args) -> Reply,
    context: Arc<RpcContext>,
    args: Args,
) -> Reply {
    let permits = context.bounds.reads.clone();
    blocking(name, permits, move || function(&context, args)).await
}

/// Runs a heavy method once it has a permit.
async fn heavy(
    name: &'static str,
    function: fn(&RpcContext, Args, &Deadline) -> Reply,
    context: Arc<RpcContext>,
    args: Args,
    client: Client,
) -> Reply {
    let deadline = Deadline::after(context.bounds.timeout);
    let same_context = context.clone();
    let work = move |deadline: &Deadline| function(&same_context, args.clone(), deadline);
    context.bounds.heavy.run(name, client, deadline, work).await
}

/// Attempts `work` on this task; `None` if it must run elsewhere.
fn attempt(name: &str, args: &Args, work: impl FnOnce(Args) -> Reply) -> Option<Reply> {
    if args.size() > BRIEF_PARAMS {
        return None;
    }
    let args = args.clone();
    let caught =
        || catch_unwind(AssertUnwindSafe(|| work(args))).unwrap_or_else(|_| Err(crashed(name)));
    memory_only::attempt(caught)
}

/// Attempts a call on this task; `None` if it must run elsewhere.
pub(super) fn attempt_call(
    name: &str,
    function: fn(&RpcContext, Args, &Deadline) -> Reply,
    context: &RpcContext,
    args: &Args,
) -> Option<Reply> {
    let _permit = context.bounds.brief_calls.try_acquire().ok()?;
    let deadline = Deadline::after(BRIEF);
    let reply = attempt(name, args, |args| function(context, args, &deadline))?;
    // The error may only be that of the deadline.
    let aborted = reply.is_err() && deadline.passed();
    (!aborted).then_some(reply)
}

fn bind(name: &'static str, method: Method, context: Arc<RpcContext>) -> BoundMethod {
    Box::new(move |args, client| {
        let context = context.clone();
        match method {
            Method::Quick(function) => async move { function(&context, args) }.boxed(),
            Method::Async(function) => function(context, args),
            Method::Plain(function) => async move { function(args) }.boxed(),
            Method::Rollup(function) => {
                async move { function(&context.rollup_node(), args) }.boxed()
            }
            Method::RollupAsync(function) => function(Arc::new(context.rollup_node()), args),
            Method::Read(function) => read(name, function, context, args).boxed(),
            Method::Lookup(function) => async move {
                match attempt(name, &args, |args| function(&context, args)) {
                    Some(reply) => reply,
                    None => read(name, function, context, args).await,
                }
            }
            .boxed(),
            Method::Heavy(function) => heavy(name, function, context, args, client).boxed(),
            Method::Call(function) => async move {
                let begun = Instant::now();
                let attempted = attempt_call(name, function, &context, &args);
                if begun.elapsed() > YIELD_AFTER {
                    yield_now().await;
                }
                match attempted {
                    Some(reply) => reply,
                    None => heavy(name, function, context, args, client).await,
                }
            }
            .boxed(),
            Method::Trace(function) => async move {
                let bounds = &context.bounds;
                let deadline = Deadline::after(bounds.trace_timeout);
                let work = {
                    let context = context.clone();
                    move |deadline: &Deadline, _: &StartedCall| {
                        let out = TraceWriter::in_memory(context.bounds.trace_bytes);
                        let text = function(&context, args.clone(), deadline, out)?;
                        RawValue::from_string(text)
                            .map_err(|error| RpcError::new(INTERNAL, error.to_string()))
                    }
                };
                bounds.heavy.trace(name, client, deadline, work).await
            }
            .boxed(),
        }
    })
}

/// Binds a tracing method, so that its result is sent while it is being made.
fn bind_chunked(
    name: &'static str,
    trace: TraceFunction,
    context: Arc<RpcContext>,
) -> BoundChunked {
    Box::new(move |args, client| {
        let context = context.clone();
        ChunkedText::new(|sender| {
            async move {
                if let Some(reply) = before_bedrock::forward(&context, name, &args).await {
                    return reply.map(|json| json.get().to_owned());
                }
                let deadline = Deadline::after(context.bounds.trace_timeout);
                let patience = context.bounds.reader_timeout;
                let work = {
                    let context = context.clone();
                    move |deadline: &Deadline, started: &StartedCall| {
                        let sink = chunk_sink(sender.clone(), deadline, started, patience);
                        let out = TraceWriter::in_chunks(sink);
                        trace(&context, args.clone(), deadline, out)
                    }
                };
                let heavy = &context.bounds.heavy;
                heavy.trace(name, client, deadline, work).await
            }
            .boxed()
        })
    })
}
