//! A connection that keeps what is sent, and answers an error.

use std::sync::{Arc, Mutex};

#[cfg(feature = "aio")]
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd};
#[cfg(feature = "aio")]
use redis::{ErrorKind, Pipeline, RedisFuture, Value};

/// The words of each command. Clones share them.
#[derive(Clone, Default)]
pub struct Words(Arc<Mutex<Vec<Vec<String>>>>);

impl Words {
    pub fn sent(&self) -> Vec<Vec<String>> {
        self.0.lock().expect("no panic").clone()
    }
}

/// The words of a command.
pub fn words(command: &Cmd) -> Vec<String> {
    let word = |arg| match arg {
        Arg::Simple(bytes) => String::from_utf8(Vec::from(bytes)).expect("UTF-8"),
        other => panic!("{other:?}"),
    };
    command.args_iter().map(word).collect()
}

#[cfg(feature = "aio")]
impl ConnectionLike for Words {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.lock().expect("no panic").push(words(cmd));
        Box::pin(async { Err((ErrorKind::Client, "nobody answers").into()) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async { Err((ErrorKind::Client, "nobody answers").into()) })
    }

    fn get_db(&self) -> i64 {
        0
    }
}
