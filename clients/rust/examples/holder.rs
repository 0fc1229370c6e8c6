//! Holds places of one key, many at once, and prints when each is taken (+), given back (-) or perhaps lost (!): see
//! tests/leases in the repository.

use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis_rl_client::{Places, Redis};
use tokio::sync::Barrier;

fn setting(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn number(name: &str) -> u64 {
    setting(name).parse().unwrap_or_else(|_| panic!("{name} is not a number"))
}

fn say(words: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    writeln!(std::io::stdout(), "{now} {words}").expect("somebody reads");
}

/// From 0 to 1.
fn random() -> f64 {
    RandomState::new().hash_one(0) as u32 as f64 / f64::from(u32::MAX)
}

async fn work(ttl: Duration) {
    let late: f64 = setting("LATE").parse().expect("a part");
    let seconds =
        if random() < late { ttl.as_secs_f64() * (1.0 + random()) } else { 0.005 + 0.015 * random() };
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

async fn hold(places: Places, number: u64, all_asked: Option<Arc<Barrier>>) -> redis::RedisResult<()> {
    let limit: u64 = fs::read_to_string(setting("LIMIT_FILE"))?.parse().expect("a limit");
    let places = places.on_late(move |_| say(&format!("! {number}")));
    let place = places.hold("places", limit).await;
    if let Ok(Some(_)) = &place {
        say(&format!("+ {number} {limit}"));
    }
    match &all_asked {
        Some(all_asked) => _ = all_asked.wait().await,
        None if matches!(place, Ok(Some(_))) => work(Duration::from_millis(self::number("FOR_MS"))).await,
        None => {}
    }
    if let Some(place) = place? {
        say(&format!("- {number}"));
        place.release().await;
    }
    Ok(())
}

async fn holds(places: Places, numbers: Arc<AtomicU64>, all_asked: Option<Arc<Barrier>>) {
    loop {
        if hold(places.clone(), numbers.fetch_add(1, SeqCst), all_asked.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if all_asked.is_some() {
            return;
        }
    }
}

#[tokio::main]
async fn main() {
    let address = format!("redis://127.0.0.1:{}/", setting("REDIS_PORT"));
    let client = redis::Client::open(address).expect("an address");
    let redis = if setting("CLUSTER").is_empty() { client.into() } else { Redis::cluster([client]) };
    let redis = redis.timeout(Duration::from_secs_f64(setting("TIMEOUT").parse().expect("seconds")));
    let (tasks, is_once) = (number("TASKS"), !setting("ONCE").is_empty());
    let places = Places::new(redis)
        .ttl(Duration::from_millis(number("FOR_MS")))
        .timeout(Duration::from_secs(u64::from(!is_once)));
    let all_asked = is_once.then(|| Arc::new(Barrier::new(tasks as usize)));
    let numbers = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> =
        (0..tasks).map(|_| tokio::spawn(holds(places.clone(), numbers.clone(), all_asked.clone()))).collect();
    for task in tasks {
        task.await.expect("it does not panic");
    }
}
