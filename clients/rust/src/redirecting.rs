//! A connection to a cluster that is told not to retry.

use std::time::Duration;

use redis::aio::ConnectionLike;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};
use tokio::time::sleep;

/// How often a command is sent that no node has carried out.
const TRIES: u32 = 16;

/// Sends again only what a node has refused to carry out, since the key is elsewhere or on its way.
#[derive(Clone)]
pub(crate) struct Redirecting(pub ClusterConnection);

impl Redirecting {
    /// Whether to send it again, after this pause.
    fn pause(error: &RedisError) -> Option<Duration> {
        let ErrorKind::Server(error) = error.kind() else { return None };
        match error {
            // By then the slots are known anew.
            ServerErrorKind::Moved | ServerErrorKind::ReadOnly => Some(Duration::from_millis(1)),
            ServerErrorKind::TryAgain => Some(Duration::from_millis(10)),
            _ => None,
        }
    }

    /// The node that has the slot already, while its keys are on their way.
    fn importing(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
        let (address, _) =
            error.redirect_node().filter(|_| error.kind() == ErrorKind::Server(ServerErrorKind::Ask))?;
        let (host, port) = address.rsplit_once(':')?;
        Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl Redirecting {
    /// The reply to a command, which may be an error.
    async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let mut alone = redis::pipe();
        alone.add_command(command.clone());
        for _ in 1..TRIES {
            let error = match self.0.req_packed_commands(&alone, 0, 1).await {
                Ok(replies) => return first(replies),
                Err(error) => error,
            };
            if let Some(node) = Redirecting::importing(&error) {
                let mut asking = redis::pipe();
                asking.cmd("ASKING").ignore().add_command(command.clone());
                return first(self.0.route_pipeline(asking, 1, 1, node).await?);
            }
            let Some(pause) = Redirecting::pause(&error) else { return Err(error) };
            sleep(pause).await;
        }
        first(self.0.req_packed_commands(&alone, 0, 1).await?)
    }
}

fn first(replies: Vec<Value>) -> RedisResult<Value> {
    replies.into_iter().next().ok_or_else(|| (ErrorKind::Parse, "no reply").into())
}

impl ConnectionLike for Redirecting {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.send(cmd))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            if cmd.is_transaction() {
                return self.0.req_packed_commands(cmd, offset, count).await;
            }
            // One by one: who sends all of them again sends some of them twice.
            let mut replies = Vec::with_capacity(count);
            for command in cmd.cmd_iter() {
                replies.push(self.send(command).await?);
            }
            Ok(replies)
        })
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}
