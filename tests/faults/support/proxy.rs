//! A wire between tidegate and a server that can be cut, held up and slowed down.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// What the wire does with what is sent through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Pass,
    /// Connections stay open and new ones are taken, and nothing is passed on either way.
    BlackHole,
    /// Connections are reset, and new ones too.
    Reset,
    /// Replies come so much later.
    Delay(Duration),
}

/// A proxy in front of a server on 127.0.0.1; it ends when this is dropped.
pub struct Proxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
    /// How often connections were made half-open.
    stranded: watch::Sender<u64>,
    _runtime: Runtime,
}

impl Proxy {
    pub fn before(port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (wire, stranded) = (watch::Sender::new(Wire::Pass), watch::Sender::new(0));
        runtime.spawn(accept(listener, port, wire.subscribe(), stranded.subscribe()));
        Self { address, wire, stranded, _runtime: runtime }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub fn set(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }

    /// Makes the connections of now half-open: their server is gone and nobody tells the client. Later ones pass.
    pub fn strand(&self) {
        self.stranded.send_modify(|times| *times += 1);
    }
}

async fn accept(listener: TcpListener, port: u16, wire: watch::Receiver<Wire>, stranded: watch::Receiver<u64>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (wire, stranded) = (wire.clone(), stranded.clone());
        tokio::spawn(async move {
            // What goes wrong on a connection is what the other side would see without the proxy.
            drop(join(client, port, wire, stranded).await);
        });
    }
}

/// Joins a client with the server until either closes or the wire is cut.
async fn join(
    mut client: TcpStream,
    port: u16,
    mut wire: watch::Receiver<Wire>,
    mut stranded: watch::Receiver<u64>,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    // A black hole takes the connection and goes no further.
    let now = wire.wait_for(|wire| *wire != Wire::BlackHole).await.map(|wire| *wire);
    if now.is_ok_and(|wire| wire == Wire::Reset) {
        return client.set_zero_linger();
    }
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    server.set_nodelay(true)?;
    stranded.borrow_and_update();
    let (requests, replies) = (wire.clone(), wire.clone());
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::select! {
        end = pump(from_client, to_server, requests, |_| Duration::ZERO) => end,
        end = pump(from_server, to_client, replies, delay) => end,
        _ = async { wire.wait_for(|wire| *wire == Wire::Reset).await.is_ok() } => client.set_zero_linger(),
        _ = stranded.changed() => {
            drop(server);
            // The client's socket stays open and silent.
            std::future::pending().await
        }
    }
}

fn delay(wire: Wire) -> Duration {
    if let Wire::Delay(delay) = wire { delay } else { Duration::ZERO }
}

/// Passes bytes on, each as late as the wire says at the time they come.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut wire: watch::Receiver<Wire>,
    delay: impl Fn(Wire) -> Duration,
) -> std::io::Result<()> {
    let (sender, mut arrived) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let at_arrival = wire.clone();
    let reading = async move {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut chunk).await?;
            let due = Instant::now() + delay(*at_arrival.borrow());
            if length == 0 || sender.send((due, chunk[..length].to_vec())).is_err() {
                return std::io::Result::Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((due, bytes)) = arrived.recv().await {
            tokio::time::sleep_until(due.into()).await;
            // It fails when the proxy is gone.
            if wire.wait_for(|wire| *wire != Wire::BlackHole).await.is_err() {
                break;
            }
            to.write_all(&bytes).await?;
        }
        std::io::Result::Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}
