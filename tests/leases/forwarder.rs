//! One port for the workers, whichever server is the master.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// Forwards connections to a port. It ends with the process.
pub struct Forwarder {
    port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    target: u16,
    /// Both ends of every connection since the target was set.
    open: Vec<TcpStream>,
}

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
        let mut state = lock(&self.state);
        state.target = target;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nothing panics with the lock")
}

fn forward(client: TcpStream, state: &mut State) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, state.target))?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        // Requests are small, and none waits for the next.
        to.set_nodelay(true)?;
        state.open.push(from.try_clone()?);
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
