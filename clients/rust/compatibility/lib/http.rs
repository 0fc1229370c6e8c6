//! Requests of HTTP/1.1 by the standard library alone.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The whole answer to a request, whose fields are lines such as `account: ada\r\n`.
pub fn ask(server: SocketAddr, method: &str, path: &str, fields: &str) -> String {
    let mut stream = (0..500).find_map(|_| match TcpStream::connect(server) {
        Ok(stream) => Some(stream),
        Err(_) => {
            std::thread::sleep(std::time::Duration::from_millis(10));
            None
        }
    });
    let stream = stream.as_mut().expect("the service listens");
    let request = format!("{method} {path} HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub fn status(server: SocketAddr, method: &str, path: &str, fields: &str) -> String {
    ask(server, method, path, fields).split(' ').nth(1).unwrap_or("none").to_owned()
}

/// The statuses of requests that differ in their fields.
pub fn statuses<'a>(server: SocketAddr, path: &str, fields: impl IntoIterator<Item = &'a str>) -> String {
    fields.into_iter().map(|fields| status(server, "GET", path, fields)).collect::<Vec<_>>().join(" ")
}

/// An address that is free.
pub fn free() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A client of the server of this row.
pub fn redis() -> redis::Client {
    redis::Client::open(std::env::var("REDIS_URL").unwrap()).unwrap()
}
