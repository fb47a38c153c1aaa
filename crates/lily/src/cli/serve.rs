//! `lily serve`: the HTTP server. Listens at once, loads in the background, and ends in order on Ctrl-C or SIGTERM.

use std::io::{ErrorKind, IsTerminal};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use tokio::net::TcpListener;

use super::options::{ByteSize, ModelOptions};
use crate::api::{ApiSettings, App, Callers, ReceiveTimeouts, Server, Serving};
use crate::model::{LoadedModel, Sharing};
use crate::source::Source;

/// Serve OpenAI's and Anthropic's APIs over HTTP
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lily serve\n  lily serve --model ~/Qwen3.6-35B-A3B-4bit --bind 0.0.0.0:8000 \
                        --api-key secret\n  lily serve --parallel 8 --cache-memory 8GiB --cache-dir \
                        ~/.cache/lily\n\nThe chat page is at http://127.0.0.1:8000/, the API at \
                        http://127.0.0.1:8000/v1. Ctrl-C finishes what runs, a second one does not.")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Address and port (port 0: any free one)
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8000", env = "LILY_BIND")]
    bind: String,
    /// Name of the model in the API [default: the folder's]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), env = "LILY_NAME")]
    name: Option<String>,
    /// Requests that run at once, 1 to 16
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16), env = "LILY_PARALLEL")]
    parallel: u8,
    /// Requests that may wait; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64, env = "LILY_QUEUE")]
    queue: u16,
    /// Memory for keys and values of running requests, besides what the prefix cache gives up for them [default: half of what
    /// is free, or as much as they can use]
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| ByteSize::at_least(1, text), env = "LILY_KV_MEMORY")]
    kv_memory: Option<ByteSize>,
    /// Memory for the prefix cache; 0 = none
    #[arg(long, value_name = "SIZE", default_value = "2GiB", env = "LILY_CACHE_MEMORY")]
    cache_memory: ByteSize,
    /// Folder that keeps the prefix cache across restarts
    #[arg(long, value_name = "DIR", env = "LILY_CACHE_DIR")]
    cache_dir: Option<PathBuf>,
    /// Most bytes in --cache-dir
    #[arg(long, value_name = "SIZE", default_value = "16GiB", env = "LILY_CACHE_DIR_SIZE")]
    cache_dir_size: ByteSize,
    /// How long a running answer may pause while another request's prompt is read, ms
    #[arg(long, value_name = "MS", default_value_t = 300, env = "LILY_MAX_STALL")]
    max_stall: u32,
    /// Longest time a request may take, waiting included, s [default: no limit]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..), env = "LILY_REQUEST_TIMEOUT")]
    request_timeout: Option<u32>,
    /// Most thinking tokens of a request that does not say [default: no limit]
    #[arg(long, value_name = "N", env = "LILY_THINKING_BUDGET")]
    thinking_budget: Option<u32>,
    /// Key that requests must carry (Authorization: Bearer KEY, or x-api-key: KEY)
    #[arg(long, value_name = "KEY", value_parser = api_key, env = "LILY_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Origin whose web pages may call; may be given several times, * = all [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = origin, env = "LILY_CORS_ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,
    /// Largest request body
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = |text: &str| ByteSize::at_least(256, text), env = "LILY_MAX_BODY")]
    max_body: ByteSize,
    /// How long running requests may go on after Ctrl-C or SIGTERM, s
    #[arg(long, value_name = "S", default_value_t = 30, env = "LILY_DRAIN_TIMEOUT")]
    drain_timeout: u32,
}

impl ServeArgs {
    /// Settings of a server that listens at `address`.
    fn settings(&self, address: IpAddr) -> ApiSettings {
        ApiSettings {
            api_key: self.api_key.clone(),
            callers: if address.is_loopback() && self.api_key.is_none() { Callers::Local } else { Callers::Any },
            cors_origins: self.cors_origin.clone(),
            max_body: self.max_body.0 as usize,
            request_timeout: self.request_timeout.map(|s| Duration::from_secs(s.into())),
            timeouts: ReceiveTimeouts::default(),
            thinking_budget: self.thinking_budget.map(|n| n as usize),
        }
    }

    fn sharing(&self) -> Sharing {
        Sharing {
            parallel: self.parallel.into(),
            max_waiting: self.queue.into(),
            kv_bytes: self.kv_memory.map(|size| size.0).or_else(|| available_memory().map(|bytes| bytes / 2)),
            cache_bytes: self.cache_memory.0,
            cache_dir: self.cache_dir.clone(),
            cache_dir_bytes: self.cache_dir_size.0,
            max_stall: Duration::from_millis(self.max_stall.into()),
        }
    }
}

fn api_key(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        Err("accepted: printable ASCII without spaces, at least one".into())
    }
}

/// An origin as browsers send it: nothing behind host and port.
fn origin(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let plain = |host: &str| {
        !host.is_empty()
            && !host.starts_with(':')
            && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@".contains(&b))
    };
    if text == "*" || host.is_some_and(plain) {
        Ok(text.to_owned())
    } else {
        Err("accepted: http://HOST[:PORT], https://HOST[:PORT], or *".into())
    }
}

/// Memory that can be taken without swapping, where the system tells.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Runs the command.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LILY_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_ansi(colours);
    log.with_writer(std::io::stderr).init();
    let source = Source::from_option(args.model.model.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(args, source));
    // A model that is still being loaded does not hold up the end.
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &ServeArgs, source: Source) -> anyhow::Result<ExitCode> {
    let listener = TcpListener::bind(&args.bind).await.map_err(|error| {
        let accepted = match error.kind() {
            ErrorKind::AddrInUse => " (accepted: a port that no other program uses; 0 finds one)",
            ErrorKind::PermissionDenied | ErrorKind::AddrNotAvailable => "",
            _ => " (accepted: ADDRESS:PORT, as 127.0.0.1:8000 or [::1]:8000)",
        };
        anyhow::Error::new(error).context(format!("--bind {}{accepted}", args.bind))
    })?;
    let address = listener.local_addr()?;
    let settings = args.settings(address.ip().to_canonical());
    let app = App::new(settings.clone());
    let server = Server::new(listener, &app);
    tracing::info!("listening on http://{address}");
    warn_if_open(address.ip().to_canonical(), &settings);

    let mut signals = Signals::new()?;
    let (options, sharing, name) = (args.model.clone(), args.sharing(), args.name.clone());
    let start = Instant::now();
    let mut loading = tokio::task::spawn_blocking(move || LoadedModel::load(&source, &options, &sharing));
    let patience = Duration::from_secs(args.drain_timeout.into());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut running = tokio::spawn(server.run(
        async {
            let _ = stopped.await;
        },
        // The engine cancels what is not done by then, and clients are told.
        patience + Duration::from_secs(1),
    ));
    let mut loaded = false;
    loop {
        tokio::select! {
            model = &mut loading, if !loaded => {
                let mut model = model.context("loading the model")??;
                model.name = name.clone().unwrap_or(model.name);
                loaded = true;
                let seconds = start.elapsed().as_secs_f64();
                let limits = model.engine.limits();
                tracing::info!(
                    "{} on {}, {} tokens of context, loaded in {seconds:.2} s",
                    model.name, model.engine.device_info(), limits.max_seq
                );
                app.loaded(Arc::new(Serving::new(model, settings.clone())));
            }
            () = signals.next() => break,
            _ = &mut running => bail!("the server has stopped"),
        }
    }
    tracing::info!("shutting down: running requests have {} s to end", patience.as_secs());
    app.end();
    let _ = stop.send(());
    let drained = app.serving().ok().map(|serving| {
        let engine = Arc::clone(&serving.engine);
        tokio::task::spawn_blocking(move || engine.drain(patience))
    });
    let end = async {
        if let Some(drained) = drained {
            let _ = drained.await;
        }
        let _ = running.await;
    };
    tokio::select! {
        () = end => Ok(ExitCode::SUCCESS),
        () = signals.next() => {
            tracing::warn!("stopped at once");
            Ok(ExitCode::from(130))
        }
    }
}

fn warn_if_open(ip: IpAddr, settings: &ApiSettings) {
    if !ip.is_loopback() {
        let key = if settings.api_key.is_some() { "with the API key" } else { "and there is no --api-key" };
        tracing::warn!("{ip} is reachable from other machines, without encryption, {key}");
    }
}

/// Ctrl-C, and SIGTERM where there is such a thing.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(not(unix))]
    fn new() -> anyhow::Result<Self> {
        Ok(Signals {})
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
