//! Whether a server is asked.

/// How long after a probe the next one may be sent.
const PROBE_MS: u64 = 250;
/// Probes in a row that are answered in time until a server is back: at a round trip of about the timeout one may be
/// by chance.
const ANSWERED: u32 = 2;

/// A server as requests know it: while it is away they are told at once, and probes find out when it is back.
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

/// What becomes of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ask {
    /// It is asked.
    Ask,
    /// It is told at once that the server is away.
    Away,
    /// The same, and a probe is sent: what it would have sent, at cost 0.
    Probe,
}

impl Away {
    /// A request that was asked could not be answered. Tells whether that is news.
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

    /// A probe was answered or not. Tells whether the server is back by that.
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
