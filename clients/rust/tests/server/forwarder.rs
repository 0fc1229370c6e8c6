//! A network between a client and a server: it delays, falls silent, and loses replies.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Forwards connections to a server.
pub struct Forwarder {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: AtomicU16,
    /// One way.
    delay: Duration,
    /// Connections so far, and those of them that carry nothing any more.
    connections: AtomicUsize,
    silent: AtomicUsize,
    loses_replies: AtomicBool,
}

impl Forwarder {
    pub fn start(server: u16, delay: Duration) -> Forwarder {
        Forwarder::on(TcpListener::bind("127.0.0.1:0").expect("a free port"), server, delay)
    }

    /// On a port that was chosen before.
    pub fn on(listener: TcpListener, server: u16, delay: Duration) -> Forwarder {
        let shared = Arc::new(Shared {
            server: server.into(),
            delay,
            connections: AtomicUsize::new(0),
            silent: AtomicUsize::new(0),
            loses_replies: AtomicBool::new(false),
        });
        let port = listener.local_addr().expect("its address").port();
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accepting.connect(client);
            }
        });
        Forwarder { port, shared }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn client(&self) -> redis::Client {
        redis::Client::open(self.url()).expect("an address")
    }

    /// New connections lead to another server. Those that there are stay as they are.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
    }

    /// From now on the connections that there are carry nothing. New ones work.
    pub fn fall_silent(&self) {
        self.shared.silent.store(self.shared.connections.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// The next reply is lost, and its connection with it.
    pub fn lose_a_reply(&self) {
        self.shared.loses_replies.store(true, Ordering::SeqCst);
    }

    /// Whether a reply is still to be lost.
    pub fn is_to_lose_a_reply(&self) -> bool {
        self.shared.loses_replies.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn connect(self: &Arc<Shared>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.server.load(Ordering::SeqCst))) else {
            return;
        };
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
        }
        let another = |stream: &TcpStream| stream.try_clone().expect("a socket");
        self.carry(number, another(&client), another(&server), false);
        self.carry(number, server, client, true);
    }

    fn carry(self: &Arc<Shared>, number: usize, mut from: TcpStream, mut to: TcpStream, are_replies: bool) {
        let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
        let shared = self.clone();
        thread::spawn(move || {
            for (due, bytes) in receiver {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let is_silent = number < shared.silent.load(Ordering::SeqCst);
                if !is_silent && to.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        let shared = self.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if are_replies && shared.loses_replies.swap(false, Ordering::SeqCst) {
                    break;
                }
                if sender.send((Instant::now() + shared.delay, buffer[..length].to_vec())).is_err() {
                    break;
                }
            }
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}
