//! Replies as the bytes of RESP2.

use crate::limiter::digits;
use crate::reply::Reply;

/// Bytes of an unknown command's name, and of its arguments, that a server repeats.
const REPEATED: usize = 128;

/// A reply.
#[derive(Default)]
pub struct Resp(Vec<u8>);

impl Resp {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Forgets the last reply.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Replies with OK.
    pub fn ok(&mut self) {
        self.0.extend_from_slice(b"+OK\r\n");
    }

    /// Replies with an error that begins with its code.
    pub fn error(&mut self, text: &[u8]) {
        self.0.push(b'-');
        // As servers do, since a line ends the reply.
        self.0.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.0.extend_from_slice(b"\r\n");
    }

    /// Refuses the number of words after this name of a command.
    pub fn wrong_arity(&mut self, name: &[u8]) {
        self.error(&[b"ERR wrong number of arguments for '", name, b"' command"].concat());
    }

    /// Refuses a command that does not exist.
    pub fn unknown_command<W: AsRef<[u8]>>(&mut self, name: &[u8], args: &[W]) {
        let mut repeated = Vec::new();
        for arg in args {
            let Some(room) = REPEATED.checked_sub(repeated.len()).filter(|room| *room > 0) else { break };
            repeated.extend([b"'", start(arg.as_ref(), room), b"' "].concat());
        }
        let name = start(name, REPEATED);
        self.error(&[b"ERR unknown command '", name, b"', with args beginning with: ", &repeated].concat());
    }

    fn number(&mut self, kind: u8, number: i64) {
        self.0.push(kind);
        if number < 0 {
            self.0.push(b'-');
        }
        self.0.extend_from_slice(digits(number.unsigned_abs(), &mut [0; 20]));
        self.0.extend_from_slice(b"\r\n");
    }
}

/// The first bytes of a text, which for a server ends at a zero.
fn start(text: &[u8], most: usize) -> &[u8] {
    let text = &text[..text.len().min(most)];
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

impl Reply for Resp {
    fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    fn map(&mut self, len: usize) {
        self.array(2 * len);
    }

    fn integer(&mut self, integer: i64) {
        self.number(b':', integer);
    }

    fn text(&mut self, text: &str) {
        self.number(b'$', text.len() as i64);
        self.0.extend_from_slice(text.as_bytes());
        self.0.extend_from_slice(b"\r\n");
    }

    fn null(&mut self) {
        self.0.extend_from_slice(b"$-1\r\n");
    }
}
