//! The arguments of commands, besides keys and quotas.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{Cmd, RedisWrite, ToRedisArgs, ToSingleRedisArg};

use super::algorithm::Algorithm;
use super::quota::{Quota, length_and_unit};

/// The largest cost that the commands accept.
pub(crate) const MAX_COST: i64 = (1 << 53) - 1;

/// The cost of a request, and options. A number converts into a cost without options.
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use redis_rl_client::Take;
/// let three_units: Take = 3.into();
/// let settled = Take::cost(-350).at(SystemTime::now());
/// let counted_anyway = Take::cost(40).force();
/// let as_many_as_fit = Take::cost(40).partial();
/// let soon = Take::cost(1).within(Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct Take {
    cost: i64,
    /// The option for a cost of more than is left.
    excess: Option<Excess>,
    at: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Excess {
    Force,
    Partial,
    Within(Duration),
}

impl Take {
    /// Takes this many units. A negative cost gives units back, the newest first; 0 only looks.
    pub const fn cost(cost: i64) -> Take {
        Take { cost, excess: None, at: None }
    }

    /// Counts the units even if the request is over the limit. Like `partial` and `within`, it replaces the other two.
    pub const fn force(mut self) -> Take {
        self.excess = Some(Excess::Force);
        self
    }

    /// Takes as many of the units as fit every quota.
    ///
    /// The verdict then has [`taken`](crate::Verdict::taken) and [`at`](crate::Verdict::at). It is limited if fewer were
    /// taken than asked for, and `retry_after` is the wait for one more unit.
    pub const fn partial(mut self) -> Take {
        self.excess = Some(Excess::Partial);
        self
    }

    /// Of a bucket, takes units ahead if they will be there within this time, rounded up to a millisecond.
    ///
    /// The verdict then has [`taken`](crate::Verdict::taken) and [`at`](crate::Verdict::at), the time at which they are there:
    /// wait for `retry_after`, and use them then. It is limited if the wait would be longer.
    pub const fn within(mut self, wait: Duration) -> Take {
        self.excess = Some(Excess::Within(wait));
        self
    }

    /// Decides as of this time, rounded down to a millisecond, instead of the server's clock.
    ///
    /// Giving back as of a time removes only units that were counted by then.
    pub const fn at(mut self, at: SystemTime) -> Take {
        self.at = Some(at);
        self
    }
}

impl From<i64> for Take {
    fn from(cost: i64) -> Take {
        Take::cost(cost)
    }
}

/// Writes the options after the quotas.
impl ToRedisArgs for Take {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        if self.cost != 1 {
            out.write_arg(b"COST");
            out.write_arg_fmt(self.cost);
        }
        match self.excess {
            None => {}
            Some(Excess::Force) => out.write_arg(b"FORCE"),
            Some(Excess::Partial) => out.write_arg(b"PARTIAL"),
            Some(Excess::Within(wait)) => {
                let (length, unit) = length_and_unit(wait);
                out.write_arg(b"WITHIN");
                out.write_arg_fmt(format_args!("{length}{unit}"));
            }
        }
        write_at(out, self.at);
    }
}

/// A request for several keys: all allow it and are counted, or nothing changes in any.
///
/// A key is named once, with all its quotas. The reply has a [`Verdict`](crate::Verdict) for each quota, in this order.
#[derive(Clone, Debug)]
#[must_use]
pub struct All {
    rows: Cmd,
    options: Take,
}

impl All {
    /// A request without a key. Add keys with 1 to 64 quotas in all.
    pub fn new() -> All {
        All { rows: with_room("RL.ALL"), options: Take::cost(1) }
    }

    /// Adds a key, its algorithm, its quotas and its cost. A cost of 0 only looks, a negative one gives units back.
    pub fn key(
        mut self,
        key: impl ToSingleRedisArg,
        algorithm: Algorithm,
        quotas: impl AsRef<[Quota]>,
        cost: i64,
    ) -> All {
        for quota in quotas.as_ref() {
            self.rows.arg(&key).arg(algorithm).arg(quota).arg(cost);
        }
        self
    }

    /// Counts every key even if some refuse.
    pub fn force(mut self) -> All {
        self.options = self.options.force();
        self
    }

    /// Decides as of this time, rounded down to a millisecond, instead of the server's clock.
    pub fn at(mut self, at: SystemTime) -> All {
        self.options = self.options.at(at);
        self
    }

    pub(crate) fn cmd(&self) -> Cmd {
        self.rows.clone().arg(self.options).take()
    }
}

impl Default for All {
    fn default() -> All {
        All::new()
    }
}

pub(crate) fn write_at<W: ?Sized + RedisWrite>(out: &mut W, at: Option<SystemTime>) {
    let Some(at) = at else { return };
    let since = at.duration_since(UNIX_EPOCH).map(|since| since.as_nanos() as i128);
    // The server refuses a time before 1970.
    let nanos = since.unwrap_or_else(|before| -(before.duration().as_nanos() as i128));
    out.write_arg(b"AT");
    out.write_arg_fmt(nanos.div_euclid(1_000_000));
}

/// A command with memory for its usual arguments.
pub(crate) fn with_room(name: &str) -> Cmd {
    Cmd::with_capacity(16, 128).arg(name).take()
}

/// The slot of a key on a cluster: the CRC16 of its hash tag, or of the whole key.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|start| {
        let rest = &key[start + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|length| *length > 0).map(|length| &rest[..length])
    });
    let crc = tag.unwrap_or(key).iter().fold(0u16, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    });
    crc % 16_384
}
