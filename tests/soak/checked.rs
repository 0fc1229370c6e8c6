//! Keys with every unit accounted for: plain models check the effects that the server replicates against the
//! limits.

use harness::{ReplicationStream, Server};
use redis_rl_core::encoding::decode_effect;
use redis_rl_core::limiter::{Algorithm, Effect, Quota, Recorded, WindowMs};

use crate::naive::{Model, Search};

/// A key that is never deleted or evicted: its units are refunded, or they expire.
pub struct Key {
    pub name: String,
    /// The command that counts in it.
    pub command: &'static str,
    /// Limits and windows, as requests name them.
    pub pairs: String,
    /// Whether requests name their time with AT.
    pub with_at: bool,
    algorithm: Algorithm,
    quotas: Vec<Quota>,
}

/// Limits and windows in milliseconds.
const TIERS: [&[(u64, u64)]; 4] =
    [&[(5, 100)], &[(20, 1_000)], &[(3, 70), (40, 2_000)], &[(100, 5_000), (300, 30_000), (9, 333)]];

/// Two keys for each algorithm, each of these tiers, and with or without AT.
pub fn keys() -> Vec<Key> {
    let kinds = Algorithm::ALL.into_iter().flat_map(|algorithm| TIERS.map(|tiers| (algorithm, tiers)));
    let keys = kinds.flat_map(|kind| [(kind, false), (kind, true), (kind, false), (kind, true)]);
    keys.enumerate()
        .map(|(index, ((algorithm, tiers), with_at))| Key {
            name: format!("checked:{index}"),
            command: algorithm.command().to_str().expect("a command"),
            pairs: tiers.iter().map(|(limit, window)| format!("{limit} {window}ms ")).collect(),
            with_at,
            algorithm,
            quotas: tiers.iter().map(|tier| quota(*tier)).collect(),
        })
        .collect()
}

fn quota((limit, window): (u64, u64)) -> Quota {
    Quota::new(limit, WindowMs::new(window).expect("a window")).expect("a limit")
}

/// The units counted in a key.
pub struct Account {
    model: Model,
    /// All units taken.
    pub taken: i64,
    /// When units were last counted or refunded.
    latest: u64,
}

impl Account {
    fn of(key: &Key) -> Account {
        Account { model: Model::new(key.algorithm, Search::Halving), taken: 0, latest: 0 }
    }

    /// Follows an effect on the key.
    fn apply(&mut self, key: &Key, effect: &str) {
        let Key { algorithm, quotas, .. } = key;
        match decode_effect(effect.as_bytes()).expect("an effect") {
            Effect::Recorded(Recorded { units, at, moved, .. }) => {
                assert_eq!(moved.back, None, "no clock steps back");
                let (units, at) = (units.get(), at.get());
                assert!(!self.model.refuses(quotas, units, at), "over a limit: {effect}, {:?}", self.model);
                self.model.record(quotas, units, at, true, false).expect("an effect changes something");
                self.taken += units.max(0);
                self.latest = self.latest.max(at);
            }
            Effect::Moved(_) => {}
            Effect::Deleted => self.model = Model::new(*algorithm, Search::Halving),
        }
    }
}

/// Follows the effects that a server sends to its replicas, in order, until it sends `last`. Each effect has
/// to be within every limit.
pub fn follow(effects: &mut ReplicationStream, keys: &[Key], last: &str) -> Vec<Account> {
    let mut accounts: Vec<Account> = keys.iter().map(Account::of).collect();
    loop {
        let effect = effects.next_command().expect("a command");
        if effect == last {
            return accounts;
        }
        let Some(pairs) = effect.strip_prefix("RL.APPLY ") else { continue };
        for pair in pairs.split(' ').collect::<Vec<_>>().chunks(2) {
            let Some(index) = pair[0].strip_prefix("checked:") else { continue };
            let index: usize = index.parse().expect("a number");
            accounts[index].apply(&keys[index], pair[1]);
        }
    }
}

/// Asserts that the server holds exactly what was counted, as of the last time that anything was.
pub fn assert_agrees(server: &Server, keys: &[Key], accounts: &[Account]) {
    for (key, Account { model, latest, .. }) in keys.iter().zip(accounts) {
        for quota in &key.quotas {
            let (limit, window) = (quota.limit(), quota.window().get());
            let peek = format!("RL.PEEK {} {limit} {window}ms AT {latest}", key.name);
            let held = limit - server.figures(&peek)[2] as u64;
            let about = || format!("{peek} of {} {}", key.command, key.pairs);
            if held == 0 && !key.with_at && server.integer(&format!("EXISTS {}", key.name)) == 0 {
                // It may have expired since, once nothing in it counted any more.
                let now = server.clock_ms() as u64;
                assert_eq!(model.used(quota, now), 0, "{}: it has expired", about());
            } else {
                assert_eq!(held, model.used(quota, *latest), "{}", about());
            }
        }
    }
}
