//! Takes units of one key as fast as it can, 20 at a time, and prints when each request passed: see tests/leases in the
//! repository.

use std::env;
use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis_rl_client::{Algorithm, Leases, Quota};

fn setting(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn number(name: &str) -> u64 {
    setting(name).parse().unwrap_or_else(|_| panic!("{name} is not a number"))
}

fn unix_ms(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis())
}

async fn take(leases: Leases) {
    loop {
        let asked = SystemTime::now();
        match leases.take("hot", 1).await {
            Ok(verdict) if !verdict.limited => {
                // One that its reply allows passes when it is counted, one that a lease serves when it is served.
                let passed = verdict.at.map_or(asked, |at| at.max(asked));
                writeln!(std::io::stdout(), "{}", unix_ms(passed)).expect("somebody reads");
                tokio::task::yield_now().await;
            }
            Ok(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

#[tokio::main]
async fn main() {
    let address = format!("redis://127.0.0.1:{}/", setting("REDIS_PORT"));
    let client = redis::Client::open(address).expect("an address");
    let name = setting("ALGORITHM");
    let named = |algorithm: &&Algorithm| format!("{algorithm:?}").eq_ignore_ascii_case(&name);
    let algorithm = *Algorithm::EVERY.iter().find(named).expect("an algorithm");
    let quota: Quota = format!("{}/{}", setting("LIMIT"), setting("WINDOW")).parse().expect("a quota");
    let leases = Leases::new(client, algorithm, [quota])
        .units(number("UNITS"))
        .remember(Duration::from_millis(number("REMEMBER_MS")));
    let tasks: Vec<_> = (0..20).map(|_| tokio::spawn(take(leases.clone()))).collect();
    for task in tasks {
        task.await.expect("it never ends");
    }
}
