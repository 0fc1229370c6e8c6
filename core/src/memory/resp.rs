//! Replies as the bytes of RESP2.

use crate::limiter::digits;
use crate::reply::Reply;
use crate::request::Refusal;

/// The bytes of an unknown command's name, and of its arguments together, that a server repeats in its error.
const REPEATED: usize = 128;

/// More bytes than any reply has: RL.ALL answers 64 rows with five numbers each.
const MOST_BYTES: usize = 16 << 10;

#[derive(Default)]
pub struct Resp(Vec<u8>);

impl Resp {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Discards the last reply. Returns whether there is memory for another.
    pub fn begin(&mut self) -> bool {
        self.0.clear();
        self.0.try_reserve(MOST_BYTES).is_ok()
    }

    pub fn ok(&mut self) {
        self.0.extend_from_slice(b"+OK\r\n");
    }

    /// Replies with an error to the command of this name.
    pub fn refuse(&mut self, name: &[u8], refusal: Refusal) {
        self.0.push(b'-');
        match refusal {
            Refusal::Arity => self.line(&[b"ERR wrong number of arguments for '", name, b"' command"]),
            Refusal::Text(text) => self.line(&[text.to_bytes()]),
        }
        self.0.extend_from_slice(b"\r\n");
    }

    pub fn unknown_command<W: AsRef<[u8]>>(&mut self, name: &[u8], args: &[W]) {
        let name = start(name, REPEATED);
        self.line(&[b"-ERR unknown command '", name, b"', with args beginning with: "]);
        let begin = self.0.len();
        for arg in args {
            let Some(room) = REPEATED.checked_sub(self.0.len() - begin).filter(|room| *room > 0) else {
                break;
            };
            self.line(&[b"'", start(arg.as_ref(), room), b"' "]);
        }
        self.0.extend_from_slice(b"\r\n");
    }

    /// Adds text to a line. As on servers, line breaks in it become spaces, so that it cannot begin another reply.
    fn line(&mut self, parts: &[&[u8]]) {
        let text = parts.iter().flat_map(|part| *part);
        self.0.extend(text.map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
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

/// The first bytes of a text, at most so many. It ends at a zero byte, as it does for a server.
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
