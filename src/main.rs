//! The program: reads its command line, runs one role, and reports every failure as one sentence
//! and an exit code.

use anyhow::{Context, bail};
use starling::{
    chain::{self, genesis},
    cli::{self, CliError, Invocation, config::InitConfig, key::Tool},
    db, devnet, file_access,
    networks::RollupSource,
    node, open_files, script_host,
    tasks::StopSignals,
    telemetry::{self, LogConfig},
    transfer,
};
use std::{
    future::Future,
    io::{self, Read, Write},
    process::ExitCode,
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code for an invalid command line; any other failure is exit code 1.
const USAGE: u8 = 2;

/// Time after the second signal for logging the work left undone.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == script_host::ARGUMENT)
    {
        return script_host::run();
    }
    let argv = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned());
    let mut parsed = match cli::parse(argv, &|name| std::env::var(name).ok()) {
        Ok(parsed) => parsed,
        Err(CliError::Help(text)) => {
            eprint!("{text}");
            return ExitCode::from(USAGE);
        }
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(USAGE);
        }
    };
    if let Some(role) = parsed.role {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let unknown = cli::parse::unknown_variables(role, names);
        parsed.notices.extend(unknown);
    }
    match run(parsed.invocation, &parsed.notices) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let sentence = telemetry::sentence(&error);
            match file_access::advice(&sentence) {
                Some(advice) => eprintln!("error: {sentence}; {advice}"),
                None => eprintln!("error: {sentence}"),
            }
            ExitCode::FAILURE
        }
    }
}

fn run(invocation: Invocation, notices: &[String]) -> anyhow::Result<()> {
    match invocation {
        Invocation::Print(text) => print(&text)?,
        Invocation::Key(tool) => print(&format!("{}\n", tool.run(&input(tool)?)?))?,
        Invocation::Init(config) => {
            start_log(&config.log, notices)?;
            init(&config)?;
        }
        Invocation::Import(config) => {
            start_log(&config.log, notices)?;
            until_interrupted(|token| async { Ok(transfer::run_import(config, token).await?) })?;
        }
        Invocation::Export(config) => {
            start_log(&config.log, notices)?;
            until_interrupted(|token| async { Ok(transfer::run_export(config, token).await?) })?;
        }
        Invocation::Db(config) => {
            start_log(&config.log, notices)?;
            db::run(&config)?;
        }
        Invocation::Devnet(config) => {
            for notice in notices {
                eprintln!("warning: {notice}");
            }
            until_interrupted(|token| async { Ok(devnet::run(config, token).await?) })?;
        }
        Invocation::Node(config) => {
            begin(&config.log, notices)?;
            let grace = match (&config.batcher, &config.proposer) {
                (None, None) => Duration::ZERO,
                _ => LAST_WORDS,
            };
            until_stopped(|signals| node::run_node(*config, signals), grace)?;
        }
        Invocation::Execution(config) => {
            begin(&config.log, notices)?;
            until_interrupted(|token| node::run_execution(*config, token))?;
        }
        Invocation::Rollup(config) => {
            begin(&config.log, notices)?;
            until_interrupted(|token| node::run_rollup(*config, token))?;
        }
        Invocation::Batcher(config) => {
            start_log(&config.log, notices)?;
            devnet::end_with_parent();
            until_stopped(|signals| node::run_batcher(*config, signals), LAST_WORDS)?;
        }
        Invocation::Proposer(config) => {
            start_log(&config.log, notices)?;
            devnet::end_with_parent();
            until_stopped(|signals| node::run_proposer(*config, signals), LAST_WORDS)?;
        }
    }
    Ok(())
}

/// Writes to standard output. A reader such as `head` may have ended before it has read everything.
fn print(text: &str) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("the output cannot be written"),
    }
}

/// `starling init`. Its messages are op-geth's, which operators and their scripts know.
fn init(config: &InitConfig) -> anyhow::Result<()> {
    if !config.genesis.is_file() {
        bail!(
            "invalid path to genesis file: {} is no file",
            config.genesis.display()
        );
    }
    let text = genesis::read_file(&config.genesis).with_context(|| {
        let place = config
            .rollup
            .as_ref()
            .and_then(RollupSource::where_genesis_is);
        let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
        format!(
            "Failed to read genesis file{place}: {}",
            config.genesis.display()
        )
    })?;
    let in_file = || config.genesis.display().to_string();
    let genesis = match &config.rollup {
        Some(source) => {
            let rollup = source.read()?;
            source.log_unknown_members();
            let genesis = genesis::parse_with_rollup(&text, &rollup).with_context(in_file)?;
            let (have, want) = (genesis.header.hash_slow(), rollup.genesis.l2.hash);
            if have != want {
                bail!(
                    "the hash of this genesis is {have}, and {source} says {want}: the two are of different chains"
                );
            }
            genesis
        }
        None => genesis::parse(&text).with_context(in_file)?,
    };
    let new = chain::init(&config.datadir, &genesis).context("Failed to write genesis block")?;
    let (database, hash) = (config.datadir.display(), genesis.header.hash_slow());
    if new {
        tracing::info!(%database, %hash, "Successfully wrote genesis state");
    } else {
        tracing::info!(%database, %hash, "This genesis is there already");
    }
    Ok(())
}

/// Runs a role, and cancels its token at the first SIGINT or SIGTERM. A second signal ends the
/// process at once.
fn until_interrupted<F>(role: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    until_stopped(|signals| role(signals.closing), Duration::ZERO)
}

/// Runs a role, and passes it the signals. After the second signal, the role has the time `grace`
/// to log the work left undone.
fn until_stopped<F>(role: impl FnOnce(StopSignals) -> F, grace: Duration) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let result = runtime.block_on(async {
        let (mut interrupt, mut terminate) = (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        );
        let signals = StopSignals::default();
        let role = role(signals.clone());
        tokio::pin!(role);
        loop {
            tokio::select! {
                ended = &mut role => return ended,
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if signals.closing.is_cancelled() {
                break;
            }
            signals.closing.cancel();
        }
        signals.ending.cancel();
        // Ignore the role's own error: the second signal is the more important message.
        let _ = tokio::time::timeout(grace, role).await;
        bail!("stopped at once by a second signal")
    });
    // Dropping the runtime would wait for blocking work, which a second signal must not do.
    runtime.shutdown_background();
    result
}

/// Prepares a process that uses many connections and files.
fn begin(log: &LogConfig, notices: &[String]) -> anyhow::Result<()> {
    start_log(log, notices)?;
    open_files::raise_limit();
    devnet::end_with_parent();
    Ok(())
}

fn start_log(config: &LogConfig, notices: &[String]) -> anyhow::Result<()> {
    telemetry::init(config)?;
    for notice in notices {
        tracing::warn!("{notice}");
    }
    Ok(())
}

fn input(tool: Tool) -> anyhow::Result<String> {
    let mut text = String::new();
    if tool.reads_input() {
        std::io::stdin()
            .take(1_000)
            .read_to_string(&mut text)
            .context("standard input cannot be read")?;
    }
    Ok(text)
}
