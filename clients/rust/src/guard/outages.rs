//! Which nodes are away, and what the log and the hook are told of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::RedisError;
use tokio::time::Instant;
use tracing::subscriber::NoSubscriber;

use crate::lines::{Address, Ask, Away, known};
use crate::locked;

/// A node of a cluster; `None` is the only server, or a cluster whose slots are not known yet.
pub(crate) type Node = Option<Address>;
type OnOutage = dyn Fn(Outage<'_>) + Send + Sync;

/// What [`on_outage`](crate::web::Guard::on_outage) is told: that Redis, or a node of a cluster, is away from now on, or decides
/// again. Both have the error for which it counts as away.
#[derive(Clone, Copy, Debug)]
pub enum Outage<'a> {
    /// It is away.
    Begun(&'a RedisError),
    /// It decides again.
    Ended(&'a RedisError),
}

/// A user has all rights again when no key was denied for so long.
const QUIET: Duration = Duration::from_secs(1);

/// The nodes that are away now, and how the log and the application learn of them.
pub(crate) struct Outages {
    started: Instant,
    away: Mutex<HashMap<Node, (Away, RedisError)>>,
    /// The last error about a key that the user has no right to, and when it came. Other keys are decided meanwhile.
    denied: Mutex<Option<(Instant, RedisError)>>,
    /// That of whoever made the guard: in a test, a thread may have one of its own.
    subscriber: tracing::Dispatch,
    /// Whether this process limits while a node is away.
    is_local: AtomicBool,
    on_outage: Mutex<Option<Arc<OnOutage>>>,
}

impl Default for Outages {
    fn default() -> Outages {
        Outages {
            started: Instant::now(),
            away: Mutex::default(),
            denied: Mutex::default(),
            subscriber: tracing::dispatcher::get_default(Clone::clone),
            is_local: AtomicBool::default(),
            on_outage: Mutex::default(),
        }
    }
}

/// Why a request is not asked, and whether a probe is sent in its place.
pub(crate) struct NotAsked {
    pub why: RedisError,
    pub probes: bool,
}

impl Outages {
    /// Those of other connections, told in the same way. None is away yet.
    pub fn anew(&self) -> Outages {
        Outages {
            subscriber: self.subscriber.clone(),
            is_local: self.is_local.load(Relaxed).into(),
            on_outage: Mutex::new(locked(&self.on_outage).clone()),
            ..Outages::default()
        }
    }

    pub fn limits_locally(&self, is_local: bool) {
        self.is_local.fetch_or(is_local, Relaxed);
    }

    pub fn tell_by(&self, tell: impl Fn(Outage<'_>) + Send + Sync + 'static) {
        *locked(&self.on_outage) = Some(Arc::new(tell));
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Whether a request may be asked.
    pub fn ask(&self, node: &Node) -> Result<(), NotAsked> {
        match locked(&self.away).get_mut(node) {
            None => Ok(()),
            Some((away, why)) => match away.ask(self.now()) {
                Ask::Ask => Ok(()),
                asked => Err(NotAsked { why: why.clone(), probes: asked == Ask::Probe }),
            },
        }
    }

    /// A request that was asked could not be answered.
    pub fn failed(&self, node: &Node, why: &RedisError) {
        let is_news = {
            let mut away = locked(&self.away);
            let (away, _) = away.entry(node.clone()).or_insert_with(|| (Away::default(), why.clone()));
            away.failed(self.now())
        };
        if is_news {
            self.tell(node, Outage::Begun(why));
        }
    }

    /// Tells the hook that a key is not decided about, since the user has no right to it. The guard logs its name.
    pub fn denied(&self, why: &RedisError) {
        let known = locked(&self.denied).replace((Instant::now(), why.clone()));
        if known.is_none() {
            self.call_hook(Outage::Begun(why));
        }
    }

    /// Tells that all keys are decided about again, once none was denied for a while.
    pub fn decided(&self) {
        let is_over = |(last, _): &mut (Instant, _)| last.elapsed() >= QUIET;
        let was_denied = locked(&self.denied).take_if(is_over);
        if let Some((_, why)) = was_denied {
            self.tell(&None, Outage::Ended(&why));
        }
    }

    /// A probe tells why a node is away. A server that was restarted without the module, say, was first away because its
    /// connection broke: what a person can do about it is logged when it is known.
    pub fn still_away(&self, node: &Node, why: &RedisError) {
        let help = |error| known(error).map(|known| &known.log);
        let is_news = match locked(&self.away).get_mut(node) {
            Some((_, said)) if help(why).is_some() && help(why) != help(said) => {
                *said = why.clone();
                true
            }
            _ => false,
        };
        if is_news {
            self.log(node, Outage::Begun(why));
        }
    }

    /// Notes whether a probe was answered. Returns in how long the next one follows, if one does.
    pub fn probed(&self, node: &Node, is_answered: bool) -> Option<Duration> {
        let next = {
            let mut nodes = locked(&self.away);
            let (away, _) = nodes.get_mut(node)?;
            away.probed(is_answered);
            away.next_probe()
        };
        if next.is_none() {
            self.back(node);
        }
        let wait = next.filter(|_| is_answered)?.saturating_sub(self.now());
        Some(Duration::from_millis(wait))
    }

    /// A node is back, or the key that found it away is on another by now.
    pub fn back(&self, node: &Node) {
        let was_away = locked(&self.away).remove(node);
        if let Some((_, why)) = was_away {
            self.tell(node, Outage::Ended(&why));
        }
    }

    /// Tells once that a node is away, and once that it is back.
    fn tell(&self, node: &Node, outage: Outage<'_>) {
        self.log(node, outage);
        self.call_hook(outage);
    }

    fn call_hook(&self, outage: Outage<'_>) {
        let hook = locked(&self.on_outage).clone();
        hook.iter().for_each(|tell| tell(outage));
    }

    fn log(&self, node: &Node, outage: Outage<'_>) {
        let redis = node.as_ref().map_or_else(|| "Redis".to_owned(), |(host, port)| format!("{host}:{port}"));
        let line = match outage {
            Outage::Ended(_) => format!("{redis} decides again"),
            Outage::Begun(why) => {
                let begins = if self.is_local.load(Relaxed) { "limits are local: " } else { "" };
                let help = known(why).map(|known| format!("{}: ", known.log));
                // The server quotes the arguments of an unknown command. The key of a user is among them.
                let said = why.to_string();
                let said = said.split(", with args").next().unwrap_or_default();
                format!("{begins}{redis} is away: {}{said}", help.unwrap_or_default())
            }
        };
        let warn = || tracing::warn!("{line}");
        if self.subscriber.is::<NoSubscriber>() {
            warn();
        } else {
            tracing::dispatcher::with_default(&self.subscriber, warn);
        }
    }
}
