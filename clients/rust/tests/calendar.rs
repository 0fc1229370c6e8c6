//! Plans by the week and the month.

use std::time::{Duration, UNIX_EPOCH};

use redis_rl_client::web::{Guard, Policy};
use redis_rl_client::{Algorithm, Clock, Leases, MemoryLimiter, Quota, RlCommands};

const DAY: Duration = Duration::from_secs(86_400);
/// 29 February 2028, at 00:00 UTC.
const LEAP_DAY: Duration = Duration::from_secs(1_835_395_200);

#[tokio::test]
async fn a_plan_by_the_month_ends_with_the_month_and_settles_beside_a_day() {
    let clock = Clock::new(UNIX_EPOCH + LEAP_DAY - DAY);
    let plan = Policy::new("plan", "10/month, 3/day").expect("a policy").algorithm(Algorithm::Fixed);
    let guard = Guard::new(MemoryLimiter::new().clock(clock.clone()), plan).expect("a policy");
    let guard = guard.clock(clock.clone()).remember(Duration::from_secs(60));
    let told = async |cost: i64| {
        let decision = guard.take("bob", cost).await.expect("it passes");
        let fields = decision.fields()["ratelimit"].to_str().expect("ASCII").to_owned();
        (fields, decision)
    };
    let (fields, first) = told(3).await;
    assert_eq!(fields, r#""plan-1mo";r=7;t=172800, "plan-1d";r=0;t=86400"#);
    let refusal = guard.take("bob", 1).await.expect_err("a refusal");
    assert_eq!(refusal.retry_after(), Some(DAY));
    guard.settle(&first, [("plan", 2)]).await.expect("the name of a policy");
    assert_eq!(guard.peek("bob").await.expect("figures").policies()["plan"].remaining, 1);
    clock.advance(DAY);
    for left in [7, 6, 5] {
        assert!(told(1).await.0.starts_with(&format!(r#""plan-1mo";r={left};t=86400,"#)));
    }
    clock.advance(DAY - Duration::from_millis(1));
    let refusal = guard.take("bob", 1).await.expect_err("a refusal");
    assert_eq!(refusal.retry_after(), Some(Duration::from_millis(1)));
    clock.advance(Duration::from_millis(1));
    assert_eq!(told(1).await.0, r#""plan-1mo";r=9;t=2678400, "plan-1d";r=2;t=86400"#);
}

#[tokio::test]
async fn a_month_is_leased() {
    let mut memory = MemoryLimiter::new().clock(Clock::new(UNIX_EPOCH + LEAP_DAY));
    let month = Quota::per_month(1_000);
    let leases = Leases::new(memory.clone(), Algorithm::Fixed, month).units(100);
    for _ in 0..300 {
        assert!(!leases.take("k", 1).await.expect("a verdict").limited);
    }
    leases.close().await;
    assert_eq!(memory.rl_peek("k", month, 1).expect("a verdict").remaining, 700);
}
