//! Servers for tests.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lily::api::{ApiSettings, App, Server, Serving};
use lily::cli::{DeviceKind, ModelOptions};
use lily::model::{LoadedModel, Sharing};
use lily::source::Source;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A running server; dropping it stops it.
pub struct TestServer {
    pub address: SocketAddr,
    pub app: Arc<App>,
    _stop: oneshot::Sender<()>,
}

/// Starts a server for `app`, which may still be without a model.
pub fn start(app: &Arc<App>) -> TestServer {
    let (stop, stopped) = oneshot::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel();
    let own = Arc::clone(app);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let server = Server::new(listener, &own);
            let stopped = async {
                let _ = stopped.await;
            };
            server.run(stopped, Duration::from_secs(1)).await;
        });
    });
    TestServer { address: told.recv().unwrap(), app: Arc::clone(app), _stop: stop }
}

/// So many requests at once, the others wait.
pub fn sharing(parallel: usize) -> Sharing {
    Sharing { parallel, max_waiting: 2000, cache_bytes: 64 << 20, ..Sharing::single() }
}

/// A server on the miniature.
pub fn with(settings: ApiSettings, sharing: &Sharing) -> TestServer {
    // The miniature gains little from more threads, and loses much where other tests want the cores.
    let options = ModelOptions { model: None, device: DeviceKind::Cpu, threads: Some(1), max_seq: Some(16_384) };
    let model = LoadedModel::load(&Source::from_option(None).unwrap(), &options, sharing).unwrap();
    let app = App::new(settings.clone());
    app.loaded(Arc::new(Serving::new(model, settings)));
    start(&app)
}

/// A server with other settings than [`shared`].
pub fn with_settings(settings: ApiSettings) -> TestServer {
    with(settings, &sharing(1))
}

/// The server that most tests share.
pub fn shared() -> SocketAddr {
    static SERVER: OnceLock<TestServer> = OnceLock::new();
    SERVER.get_or_init(|| with(ApiSettings::default(), &sharing(4))).address
}
