// Waiting is back within a second after a failover that keeps connections, which then lead to a replica.
//
// with: redis-rl-client --features leases; redis@1; tokio@1 --features full
// ci
// expect: allowed
// expect: READONLY
// expect: back within a second

#[path = "../lib/http.rs"]
mod http;

use redis_rl_client::{Acquire, Algorithm, Quota};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Carries each connection to the server that is the master when it is made.
fn forward(to: Arc<AtomicU16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", to.load(Ordering::SeqCst))).unwrap();
            for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
    port
}

fn call(port: u16, words: &str) {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let mut connection = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        client.get_connection().ok()
    });
    let words: Vec<&str> = words.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).exec(connection.as_mut().unwrap()).unwrap();
}

#[tokio::main]
async fn main() {
    let (first, second) = (std::env::var("REDIS_PORT").unwrap().parse().unwrap(), http::free().port());
    let words = format!("--port {second} --save --loadmodule {}", std::env::var("MODULE").unwrap());
    let mut words: Vec<&str> = words.split(' ').collect();
    words.insert(3, "");
    let mut server = std::process::Command::new(std::env::var("REDIS_SERVER").unwrap());
    let mut server = server.args(words).stdout(std::process::Stdio::null()).spawn().unwrap();
    call(second, "PING");
    let master = Arc::new(AtomicU16::new(first));
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", forward(master.clone()))).unwrap();
    let mails = Acquire::new(client, Algorithm::Bucket, Quota::per_second(100)).timeout(Duration::from_secs(1));
    let acquire = async || {
        let verdict = mails.take("mail", 1).await;
        verdict.map_or_else(|error| error.code().unwrap_or("no reply").to_owned(), |_| "allowed".to_owned())
    };
    println!("{}", acquire().await);
    master.store(second, Ordering::SeqCst);
    call(first, &format!("REPLICAOF 127.0.0.1 {second}"));
    let begun = Instant::now();
    println!("{}", acquire().await);
    while acquire().await != "allowed" && begun.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("{}", if begun.elapsed() < Duration::from_secs(1) { "back within a second" } else { "it does not come back" });
    server.kill().unwrap();
}
