//! Takes the reply of DUMP apart.

use harness::Server;

/// The parts of a payload, from a server that compresses nothing.
pub struct Payload {
    /// The server's bytes, up to the length of the body.
    head: Vec<u8>,
    /// The bytes that the module stored.
    pub body: Vec<u8>,
    /// The end of the value, the RDB version and the checksum.
    pub foot: Vec<u8>,
}

impl Payload {
    /// The length of the type, in 1 byte, and the module with the version of its encoding, in 9.
    pub const MODULE: usize = 10;
    /// The same, and the mark of a string.
    pub const HEAD: usize = Payload::MODULE + 1;
    /// The length of the end of the value, the version in 2 bytes, and the checksum in 8.
    pub const FOOT: usize = 11;

    /// Takes a reply of DUMP apart.
    pub fn of(dump: &[u8]) -> Payload {
        let (head, rest) = dump.split_at(Payload::HEAD);
        let (rest, foot) = rest.split_at(rest.len() - Payload::FOOT);
        // The length of the body takes 6, 14 or 32 bits.
        let length = [1, 2, 5][usize::from(rest[0] >> 6)];
        Payload { head: head.to_vec(), body: rest[length..].to_vec(), foot: foot.to_vec() }
    }

    /// The payload with another body; its checksum is wrong.
    pub fn with(&self, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32).to_be_bytes();
        [&self.head, &[0x80][..], &length, body, &self.foot].concat()
    }
}

/// A server that passes every payload to the module, whatever its checksum.
pub fn credulous_server() -> Server {
    let server = Server::with(&[("sanitize-dump-payload", "no"), ("rdbcompression", "no")]);
    server.value("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1");
    server
}
