//! The recipes do what they say: recipes.md.

use std::{collections::HashMap, error::Error, sync::Arc, sync::RwLock, time::Duration};

use redis::AsyncCommands;
use redis_rl_client::MemoryLimiter;
use redis_rl_client::web::{Guard, Policy, Refusal};

use crate::server::Server;

// As the recipe has it.
async fn limits(client: &redis::Client) -> Result<HashMap<String, Policy>, Box<dyn Error + Send + Sync>> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let changed: HashMap<String, String> = connection.hgetall("limits").await?;
    let own = [("free", "60/h"), ("paid", "10/s")].map(|(name, quotas)| (name.to_owned(), quotas.to_owned()));
    let policy = |(name, quotas): (String, String)| Ok((name.clone(), Policy::new(name, &quotas)?));
    own.into_iter().chain(changed).map(policy).collect()
}

async fn follow(client: redis::Client, policies: Arc<RwLock<HashMap<String, Policy>>>) {
    loop {
        match limits(&client).await {
            Ok(changed) => *policies.write().expect("policies") = changed,
            Err(error) => tracing::warn!("limits stay as they are: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
// To here.

async fn wait_for(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_operator_changes_limits_and_a_bad_value_keeps_the_old_ones() {
    let source = include_str!("recipes.rs").split_once("// As the recipe has it.\n").expect("the recipe").1;
    let recipe = source.split_once("// To here.\n").expect("its end").0;
    assert!(include_str!("../recipes.md").contains(recipe), "the page has another one");

    let server = Server::start();
    let client = server.client("resp3");
    let mut operator = client.get_multiplexed_async_connection().await.expect("the server answers");
    let policies = Arc::new(RwLock::new(HashMap::new()));
    let task = tokio::spawn(follow(client, policies.clone()));
    let limit = || policies.read().expect("policies").get("free").map(|free: &Policy| free.quotas()[0].limit);
    wait_for(|| limit() == Some(60)).await;
    let _: () = operator.hset("limits", "free", "120/h").await.expect("a reply");
    wait_for(|| limit() == Some(120)).await;
    let _: () = operator.hset("limits", "free", "many").await.expect("a reply");
    assert!(limits(&server.client("resp3")).await.is_err());
    assert_eq!(limit(), Some(120));
    let _: () = operator.del("limits").await.expect("a reply");
    wait_for(|| limit() == Some(60)).await;
    task.abort();
}

// The login of the recipe.
async fn login(guard: &Guard, user: &str, is_right: impl AsyncFnOnce() -> bool) -> Result<bool, Refusal> {
    let tried = guard.take(user.to_lowercase(), ()).await?;
    let is_right = is_right().await;
    if is_right {
        guard.settle(&tried, [("login", 0)]).await?;
    }
    Ok(is_right)
}
// Its end.

#[tokio::test]
async fn a_login_counts_failures_only() {
    let source =
        include_str!("recipes.rs").split_once("// The login of the recipe.\n").expect("the recipe").1;
    let recipe = source.split_once("// Its end.\n").expect("its end").0;
    assert!(include_str!("../recipes.md").contains(recipe), "the page has another one");

    let policy = Policy::new("login", "5/15m").expect("a policy").hidden(true);
    let guard = Guard::new(MemoryLimiter::new(), policy).expect("a policy");
    for _ in 0..9 {
        assert!(login(&guard, "bob", async || true).await.expect("it passes"));
    }
    for _ in 0..5 {
        assert!(!login(&guard, "Bob", async || false).await.expect("it passes"));
    }
    assert!(login(&guard, "bob", async || true).await.is_err());
    assert!(login(&guard, "alice", async || true).await.expect("it passes"));
}
