//! One port for the workers, whichever server is the master, and a network that fails.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// Forwards connections to a port. It ends with the process.
pub struct Forwarder {
    port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    target: u16,
    /// Both ends of every connection since the target was set, and what it carries.
    open: Vec<(TcpStream, Arc<AtomicU8>)>,
}

const ALL: u8 = 0;
const REQUESTS_ALONE: u8 = 1;
const NOTHING: u8 = 2;

impl Forwarder {
    pub fn to(target: u16) -> Forwarder {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(Mutex::new(State { target, open: Vec::new() }));
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A server that does not accept: the client is told by the end of its connection.
                let _ = forward(client, &mut lock(&shared));
            }
        });
        Forwarder { port, state }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends all connections; the next ones go to another port.
    pub fn switch(&self, target: u16) {
        lock(&self.state).target = target;
        self.cut();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for (stream, _) in lock(&self.state).open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The connections that are open carry nothing any more, and do not end. New ones are well.
    pub fn silence(&self) {
        self.carry(NOTHING);
    }

    /// The connections that are open carry requests, and no replies. New ones are well.
    pub fn lose_replies(&self) {
        self.carry(REQUESTS_ALONE);
    }

    fn carry(&self, what: u8) {
        for (_, carries) in &lock(&self.state).open {
            carries.store(what, Ordering::Relaxed);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nothing panics with the lock")
}

fn forward(client: TcpStream, state: &mut State) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, state.target))?;
    let carries = Arc::new(AtomicU8::new(ALL));
    for (from, to, until) in [(&client, &server, NOTHING), (&server, &client, REQUESTS_ALONE)] {
        // Requests are small, and none waits for the next.
        to.set_nodelay(true)?;
        state.open.push((from.try_clone()?, carries.clone()));
        let (mut from, mut to, carries) = (from.try_clone()?, to.try_clone()?, carries.clone());
        thread::spawn(move || {
            let _ = copy(&mut from, &mut to, || carries.load(Ordering::Relaxed) < until);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}

/// Copies what is read while the connection `carries` it, and reads the rest all the same.
fn copy(from: &mut TcpStream, to: &mut TcpStream, carries: impl Fn() -> bool) -> io::Result<()> {
    let mut bytes = [0; 64 * 1024];
    loop {
        let length = from.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        if carries() {
            to.write_all(&bytes[..length])?;
        }
    }
}
