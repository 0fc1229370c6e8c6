//! Takes the reply of DUMP apart, and damages it.

use harness::{Random, Server};

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

/// Changes, adds or removes some of the bytes.
pub fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.of(&[1, 1, 1, 2, 4]) {
        if bytes.is_empty() {
            return;
        }
        // In a long payload most of the information is near the ends.
        let (anywhere, near) = (random.below(bytes.len()), random.below(bytes.len().min(40)));
        let place = random.of(&[anywhere, near, bytes.len() - 1 - near]);
        let byte = [0, 1, 2, 0x7f, 0x80, 0x81, 0xff, random.below(256) as u8];
        match random.below(6) {
            0..2 => bytes[place] ^= 1 << random.below(8),
            2 => bytes[place] = random.of(&byte),
            3 => bytes.insert(place, random.of(&byte)),
            4 => drop(bytes.remove(place)),
            _ if random.below(4) == 0 => bytes.truncate(place),
            _ => bytes.extend_from_within(place..),
        }
    }
}
