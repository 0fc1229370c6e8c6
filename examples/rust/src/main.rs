//! A web API that limits its clients with redis-rl: axum and redis-rs.
//!
//!     GET  /           takes 1 unit of what RATE_LIMITS gives a client
//!     GET  /expensive  takes EXPENSIVE units of it
//!     POST /generate   takes tokens of a language model from TOKEN_LIMITS: an estimate at first, in the end the
//!                      number that was used

use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use serde_json::{Value, json};

const EXPENSIVE: i64 = 3;
/// Tokens that a reply of the model usually has.
const USUAL_REPLY: usize = 16;

/// The header fields RateLimit-Policy and RateLimit.
type Fields = [(HeaderName, String); 2];

struct App {
    redis: ConnectionManager,
    requests: Quota,
    tokens: Quota,
    /// Whether requests are answered while Redis is away.
    fail_open: bool,
    /// How many proxies of our own stand before this server.
    proxies: usize,
}

/// What a client may take, as in `5/10s,100/1h`: 5 units in 10 seconds and 100 in an hour.
struct Quota {
    name: &'static str,
    tiers: Vec<Tier>,
}

struct Tier {
    limit: i64,
    /// As RL commands take it.
    window: String,
    window_seconds: u64,
}

/// What one RL call answers. Of several tiers it speaks of one, which its limit names.
struct Verdict {
    limited: bool,
    limit: i64,
    remaining: i64,
    retry_after_ms: i64,
    reset_after_ms: i64,
}

impl Tier {
    fn parse(text: &str) -> Option<Tier> {
        let (limit, window) = text.trim().split_once('/')?;
        let limit = limit.parse().ok().filter(|limit| (1..1_000_000_000_000_000).contains(limit))?;
        let unit = window.chars().last()?;
        let unit_seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return None,
        };
        let units: u32 = window.strip_suffix(unit)?.parse().ok().filter(|units| *units > 0)?;
        let window_seconds = u64::from(units) * unit_seconds;
        Some(Tier { limit, window: format!("{units}{unit}"), window_seconds })
    }
}

impl Quota {
    fn parse(name: &'static str, text: &str) -> Result<Quota, String> {
        let parse = |tier| {
            let wrong = || format!("{tier:?} is no limit such as 5/10s, with a window in s, m, h or d");
            Tier::parse(tier).ok_or_else(wrong)
        };
        let tiers = text.split(',').map(parse).collect::<Result<Vec<Tier>, String>>()?;
        let limits: HashSet<i64> = tiers.iter().map(|tier| tier.limit).collect();
        let windows: HashSet<u64> = tiers.iter().map(|tier| tier.window_seconds).collect();
        if limits.len().min(windows.len()) < tiers.len() {
            return Err(format!("of {text:?} all limits must differ, and all windows"));
        }
        Ok(Quota { name, tiers })
    }

    /// The name of a tier's policy.
    fn policy(&self, tier: &Tier) -> String {
        format!("{}-{}", self.name, tier.window)
    }

    /// The name of the policy that a verdict speaks of.
    fn policy_of(&self, verdict: &Verdict) -> String {
        let tier = self.tiers.iter().find(|tier| tier.limit == verdict.limit);
        self.policy(tier.expect("a reply speaks of one of the tiers"))
    }

    /// The header fields of draft-ietf-httpapi-ratelimit-headers-11.
    fn fields(&self, verdict: &Verdict, wait_ms: i64) -> Fields {
        // Requests are the draft's default unit.
        let unit = if self.name == "requests" { String::new() } else { format!(";qu={:?}", self.name) };
        let describe =
            |tier: &Tier| format!("{:?};q={}{unit};w={}", self.policy(tier), tier.limit, tier.window_seconds);
        let policies: Vec<String> = self.tiers.iter().map(describe).collect();
        let limit = format!("{:?};r={};t={}", self.policy_of(verdict), verdict.remaining, seconds(wait_ms));
        [
            (HeaderName::from_static("ratelimit-policy"), policies.join(", ")),
            (HeaderName::from_static("ratelimit"), limit),
        ]
    }
}

impl App {
    /// Takes units in one call for all tiers, or gives them back if `cost` is negative. None if Redis is away.
    async fn take(&self, quota: &Quota, client: &str, cost: i64, options: &[&str]) -> Option<Verdict> {
        let mut command = redis::cmd("RL.LOG");
        command.arg(format!("{}:{client}", quota.name));
        for tier in &quota.tiers {
            command.arg(tier.limit).arg(&tier.window);
        }
        command.arg("COST").arg(cost).arg(options);
        match command.query_async(&mut self.redis.clone()).await {
            Ok((limited, limit, remaining, retry_after_ms, reset_after_ms)) => {
                Some(Verdict { limited, limit, remaining, retry_after_ms, reset_after_ms })
            }
            Err(error) => {
                eprintln!("cannot ask for the limit: {error}");
                None
            }
        }
    }

    /// The header fields of a response to a request that is allowed, none if Redis is away; else the refusal.
    #[expect(clippy::result_large_err, reason = "a response is what the caller answers with")]
    fn admit(&self, quota: &Quota, verdict: Option<&Verdict>) -> Result<Option<Fields>, Response> {
        let Some(verdict) = verdict else {
            if self.fail_open {
                return Ok(None);
            }
            let away = json!({"status": 503, "title": "The rate limiter is away"});
            return Err(problem(StatusCode::SERVICE_UNAVAILABLE, away));
        };
        let after_reset = quota.fields(verdict, verdict.reset_after_ms);
        if !verdict.limited {
            return Ok(Some(after_reset));
        }
        let exceeded = |status: StatusCode| {
            let body = json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Quota Exceeded",
                "status": status.as_u16(),
                "violated-policies": [quota.policy_of(verdict)],
            });
            problem(status, body)
        };
        if verdict.retry_after_ms < 0 {
            // It costs more than the limit: no wait helps, so the client is not asked to try again.
            return Err((after_reset, exceeded(StatusCode::FORBIDDEN)).into_response());
        }
        let after_wait = quota.fields(verdict, verdict.retry_after_ms);
        let retry_after = [(header::RETRY_AFTER, seconds(verdict.retry_after_ms).to_string())];
        Err((after_wait, retry_after, exceeded(StatusCode::TOO_MANY_REQUESTS)).into_response())
    }

    /// Whom to limit: the network address that the outermost of our own proxies saw.
    ///
    /// What stands further left in X-Forwarded-For is the client's own claim. Where clients log in,
    /// name the account.
    fn client_of(&self, peer: SocketAddr, headers: &HeaderMap) -> String {
        let claims: Vec<&str> =
            headers.get_all("x-forwarded-for").iter().filter_map(|claim| claim.to_str().ok()).collect();
        let claims = claims.join(",");
        let mut path = vec![peer.ip().to_string()];
        path.extend(claims.rsplit(',').map(|hop| hop.trim().to_owned()).filter(|hop| !hop.is_empty()));
        path.swap_remove(self.proxies.min(path.len() - 1))
    }
}

/// Rounded up, so that waiting this long is enough.
fn seconds(milliseconds: i64) -> i64 {
    (milliseconds + 999) / 1_000
}

fn problem(status: StatusCode, body: Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(body)).into_response()
}

/// Middleware: a request takes `cost` units or is refused.
async fn limit(
    State((app, cost)): State<(Arc<App>, i64)>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Result<Response, Response> {
    let client = app.client_of(peer, request.headers());
    let verdict = app.take(&app.requests, &client, cost, &[]).await;
    let fields = app.admit(&app.requests, verdict.as_ref())?;
    Ok((fields, next.run(request).await).into_response())
}

async fn cheap() -> Json<Value> {
    Json(json!({"message": "hello"}))
}

async fn expensive() -> Json<Value> {
    Json(json!({"message": "that took a while"}))
}

async fn generate(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    prompt: String,
) -> Result<Response, Response> {
    let client = app.client_of(peer, &headers);
    let estimate = (prompt.split_whitespace().count() + USUAL_REPLY) as i64;
    let reserved = app.take(&app.tokens, &client, estimate, &[]).await;
    let fields = app.admit(&app.tokens, reserved.as_ref())?;

    // A task of its own, so that it settles even if the client goes away meanwhile.
    let answer = tokio::spawn(async move {
        let answer = model(&prompt).await;
        let used = answer.as_ref().map_or(0, |answer| answer.tokens);
        // Without a reservation, as Redis was away, there is nothing to give back. A negative difference
        // gives back; a positive one is counted even if that is over the limit, since the tokens are spent.
        let difference = used - if reserved.is_some() { estimate } else { 0 };
        let settled = app.take(&app.tokens, &client, difference, &["FORCE"]).await;
        let fields = settled.map(|verdict| app.tokens.fields(&verdict, verdict.reset_after_ms)).or(fields);
        let answer = answer?;
        Ok((fields, Json(json!({"reply": answer.reply, "tokens": answer.tokens}))).into_response())
    });
    answer.await.unwrap_or_else(|panic| Err(panic.to_string())).map_err(|error| {
        eprintln!("no answer from the model: {error}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}

struct Answer {
    reply: String,
    /// Used for the prompt and the reply.
    tokens: i64,
}

/// A stand-in for a language model, which says everything twice.
async fn model(prompt: &str) -> Result<Answer, String> {
    let words: Vec<&str> = prompt.split_whitespace().collect();
    if words.is_empty() {
        return Err("the prompt is empty".to_owned());
    }
    let tokens = 3 * words.len() as i64;
    Ok(Answer { reply: [words.clone(), words].concat().join(" "), tokens })
}

fn setting(name: &str, default: &str) -> String {
    env::var(name).unwrap_or_else(|_| default.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let timeout = Some(Duration::from_millis(setting("REDIS_TIMEOUT_MS", "100").parse()?));
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(timeout)
        .set_response_timeout(timeout)
        // While Redis is away each request tries once, and does not wait for another try.
        .set_number_of_retries(0);
    let client = redis::Client::open(setting("REDIS_URL", "redis://127.0.0.1:6379"))?;
    let app = Arc::new(App {
        redis: ConnectionManager::new_lazy_with_config(client, config)?,
        requests: Quota::parse("requests", &setting("RATE_LIMITS", "5/10s,100/1h"))?,
        tokens: Quota::parse("tokens", &setting("TOKEN_LIMITS", "1000/1h"))?,
        fail_open: match setting("FAIL", "open").as_str() {
            "open" => true,
            "closed" => false,
            _ => {
                return Err(
                    "FAIL is open or closed: whether requests are answered while Redis is away".into()
                );
            }
        },
        proxies: setting("PROXIES", "0").parse()?,
    });

    let limited = |cost| middleware::from_fn_with_state((app.clone(), cost), limit);
    let router = Router::new()
        .route("/", get(cheap).route_layer(limited(1)))
        .route("/expensive", get(expensive).route_layer(limited(EXPENSIVE)))
        .route("/generate", post(generate))
        .with_state(app);
    let address = format!("127.0.0.1:{}", setting("PORT", "8000"));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
