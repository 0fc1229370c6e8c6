//! Whether a server is asked, or known to be away.

/// How long after a probe the next one may be sent.
const PROBE_MS: u64 = 250;
/// A server is back after this many probes in a row were answered in time. If a round trip takes about the timeout, a single
/// one may be by chance.
const ANSWERED: u32 = 2;

/// Whether a server is away. While it is, requests fail at once, and probes find out when it is back.
///
/// Times are milliseconds of a clock that never runs back.
#[derive(Clone, Debug, Default)]
pub struct Away(Option<Since>);

#[derive(Clone, Copy, Debug)]
struct Since {
    next_probe: u64,
    /// Probes in a row.
    answered: u32,
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ask {
    /// Send it.
    Ask,
    /// Fail it at once: the server is away.
    Away,
    /// Fail it at once, and send its command at cost 0 to find out whether the server is back.
    Probe,
}

impl Away {
    /// A request got no decision. Returns whether the server is away from now on.
    pub fn failed(&mut self, now: u64) -> bool {
        let is_news = self.0.is_none();
        self.0.get_or_insert(Since { next_probe: now, answered: 0 });
        is_news
    }

    /// A request comes.
    pub fn ask(&mut self, now: u64) -> Ask {
        match &mut self.0 {
            None => Ask::Ask,
            Some(since) if now >= since.next_probe => {
                since.next_probe = now + PROBE_MS;
                Ask::Probe
            }
            Some(_) => Ask::Away,
        }
    }

    /// A probe was answered or not. Returns whether the server is back from now on.
    pub fn probed(&mut self, is_answered: bool) -> bool {
        let Some(since) = &mut self.0 else { return false };
        since.answered = if is_answered { since.answered + 1 } else { 0 };
        let is_back = since.answered == ANSWERED;
        self.0.take_if(|_| is_back);
        is_back
    }

    /// When the next probe may be sent, while it is away.
    #[must_use]
    pub fn next_probe(&self) -> Option<u64> {
        self.0.map(|since| since.next_probe)
    }
}
