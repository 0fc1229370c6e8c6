// A cluster, a master behind Sentinel, TLS, a user of an ACL, and a unix socket: a guard lets two of three requests through.
//
// with: redis-rl-client --features leases; redis@1 --features sentinel,tokio-rustls-comp; rustls@0.23 --no-default-features --features ring,std; tokio@1 --features full
// expect: cluster: 2 of 3
// expect: Sentinel: 2 of 3
// expect: TLS: 2 of 3
// expect: user: 2 of 3
// expect: socket: 2 of 3

#[path = "../lib/http.rs"]
mod http;

use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, TlsCertificates};
use redis_rl_client::Redis;
use redis_rl_client::web::{Fail, Guard};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that ends with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn server(words: &str) -> Server {
    let mut command = Command::new(std::env::var("REDIS_SERVER").unwrap());
    command.args(words.split_whitespace()).args(["--save", ""]).stdout(Stdio::null());
    Server(command.spawn().unwrap())
}

fn call<T: redis::FromRedisValue>(client: &Client, words: &str) -> T {
    let words: Vec<&str> = words.split(' ').collect();
    for _ in 0..500 {
        let connection = client.get_connection();
        if let Ok(reply) = connection.and_then(|mut it| redis::cmd(words[0]).arg(&words[1..]).query(&mut it)) {
            return reply;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{words:?} gets no reply");
}

async fn decided(name: &str, redis: impl Into<Redis>) {
    let guard = Guard::new(redis, "2/h").unwrap().fail(Fail::Closed).timeout(Duration::from_secs(2)).prefix(name);
    let mut passed = 0;
    for _ in 0..3 {
        passed += usize::from(guard.take("ada", 1).await.is_ok());
    }
    println!("{name}: {passed} of 3");
}

#[tokio::main]
async fn main() {
    let module = format!("--loadmodule {}", std::env::var("MODULE").unwrap());
    let open = |port: u16| Client::open(format!("redis://127.0.0.1:{port}")).unwrap();

    let port = http::free().port();
    let bus = http::free().port();
    let _node = server(&format!("--port {port} --cluster-enabled yes --cluster-port {bus} --cluster-config-file nodes-{port} {module}"));
    let () = call(&open(port), "CLUSTER ADDSLOTSRANGE 0 16383");
    while !call::<String>(&open(port), "CLUSTER INFO").contains("cluster_state:ok") {}
    decided("cluster", Redis::cluster([open(port)])).await;

    let (port, master) = (http::free().port(), std::env::var("REDIS_PORT").unwrap());
    std::fs::write("sentinel.conf", format!("port {port}\nsentinel monitor mymaster 127.0.0.1 {master} 1\n")).unwrap();
    let _sentinel = Server(Command::new(std::env::var("REDIS_SERVER").unwrap()).args(["sentinel.conf", "--sentinel"]).stdout(Stdio::null()).spawn().unwrap());
    let () = call(&open(port), "PING");
    decided("Sentinel", Redis::by(move || {
        let sentinel = [ConnectionAddr::Tcp("127.0.0.1".to_owned(), port)];
        let client = SentinelClientBuilder::new(sentinel, "mymaster", SentinelServerType::Master);
        let client = client.and_then(|client| client.build());
        async move { client?.async_get_client().await }
    })).await;

    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out own \
        -subj /CN=here -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let words: Vec<&str> = make.split_whitespace().collect();
    assert!(Command::new(words[0]).args(&words[1..]).stderr(Stdio::null()).status().unwrap().success());
    let port = http::free().port();
    let socket = std::env::current_dir().unwrap().join("socket");
    let tls = format!("--tls-port {port} --tls-cert-file own --tls-key-file key --tls-auth-clients no --port 0");
    let _server = server(&format!("{tls} --unixsocket {} {module}", socket.display()));
    let by_socket = Client::open(format!("redis+unix://{}", socket.display())).unwrap();
    let () = call(&by_socket, "ACL SETUSER app on >secret ~* +@all");
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(std::fs::read("own").unwrap()) };
    let by_tls = |user: &str| Client::build_with_tls(format!("rediss://{user}127.0.0.1:{port}/"), certificates.clone()).unwrap();
    decided("TLS", by_tls("")).await;
    decided("user", by_tls("app:secret@")).await;
    decided("socket", by_socket).await;
}
