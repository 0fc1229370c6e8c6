//! The small service of `clients/service.json`, in axum and in actix-web, answers what that table says.

use std::collections::BTreeMap;
use std::future::ready;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use crate::server::{Cluster, PATIENCE, Server, table};
use axum::http::request::Parts;
use redis_rl_client::web::{Decision, Fail, Guard, Policies, Policy, Refusal};
use redis_rl_client::{Algorithm, Invalid, MemoryLimiter, Redis};
use serde::Deserialize;
use serde_json::Value as Json;

#[derive(Deserialize)]
struct Table {
    steps: Vec<Step>,
    away: Away,
}

#[derive(Deserialize)]
struct Away {
    open: Step,
    closed: Step,
}

#[derive(Deserialize)]
struct Step {
    #[serde(default)]
    at: u64,
    request: String,
    account: Option<String>,
    status: u16,
    body: Option<Json>,
    #[serde(default)]
    fields: BTreeMap<String, Option<String>>,
    told: Option<Vec<String>>,
}

struct Answer {
    status: u16,
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// What the service is made of in every framework.
#[derive(Clone)]
struct Limits {
    guard: Guard,
    search: Guard,
    export: Guard,
    tokens: Guard,
    batch: Guard,
    at: Arc<AtomicU64>,
    told: Arc<Mutex<Vec<String>>>,
}

fn number(head: &Parts, name: &str) -> i64 {
    let query = head.uri.query().unwrap_or_default();
    let number = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    number.map_or(0, |number| number.parse().expect("a number"))
}

fn account(head: &Parts) -> Option<String> {
    let account = head.headers.get("account")?.to_str().ok()?.to_owned();
    Some(account).filter(|account| !account.is_empty())
}

impl Limits {
    fn new(redis: impl Into<Redis>, fail: Fail) -> Result<Limits, Invalid> {
        let everybody = Policy::new("everybody", "1000/m")?.key_text("all").lease(100);
        let of_account = |policy: Policy| policy.key(|head| Some(account(head).unwrap_or("here".to_owned())));
        let free = of_account(Policy::new("free", "5/10s, 100/h")?);
        let paid = of_account(Policy::new("paid", "100/10s")?.algorithm(Algorithm::Bucket));
        let trial = of_account(Policy::new("trial", "1/10s")?.dry_run(true));
        let by_plan = Policies::by(move |head| match account(head) {
            _ if head.uri.path() == "/health" => vec![],
            Some(account) if account.starts_with("paid") => {
                vec![everybody.clone(), paid.clone(), trial.clone()]
            }
            _ => vec![everybody.clone(), free.clone()],
        });
        let (at, told) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (clock, hear) = (at.clone(), told.clone());
        let guard = Guard::new(redis, by_plan)?
            .fail(fail)
            .clock(move || UNIX_EPOCH + Duration::from_millis(clock.load(Ordering::Relaxed)))
            .on_limited(move |_, decision| {
                let policies = decision.policies().into_iter();
                let refusing = policies.filter(|(_, figures)| figures.limited).map(|(name, _)| name);
                hear.lock().expect("no panic").extend(refusing);
                None
            });
        let export = Policy::new("export", "10/m")?.cost_with(|head| number(head, "rows"));
        let tokens = Policy::new("tokens", "1000/h")?.unit("tokens").cost(200).algorithm(Algorithm::Fixed);
        Ok(Limits {
            search: guard.limit("2/10s")?,
            export: guard.limit(export)?,
            tokens: guard.limit(tokens)?,
            batch: guard.limit(Policy::new("batch", "3/m")?)?,
            guard,
            at,
            told,
        })
    }
}

/// A service that runs, to be asked.
type Service = Box<dyn Fn(&str, &str, Option<&str>) -> Pin<Box<dyn Future<Output = Answer>>>>;

mod in_axum {
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::State;
    use axum::http::Request;
    use axum::routing::{get, post};
    use tower::ServiceExt;

    use super::*;

    async fn generate(
        State(limits): State<Limits>,
        reserved: Decision,
        head: Parts,
    ) -> Result<&'static str, Refusal> {
        limits.guard.settle(&reserved, [("tokens", number(&head, "used"))]).await?;
        Ok("done")
    }

    async fn batch(State(limits): State<Limits>, head: Parts) -> Result<&'static str, Refusal> {
        limits.batch.take(&head, 2).await.map(|_| "done")
    }

    fn app(limits: Limits) -> Router {
        Router::new()
            .route("/health", get("well"))
            .route("/", get("hello"))
            .route("/search", get("found").route_layer(limits.search.layer()))
            .route("/export", get("exported").route_layer(limits.export.layer()))
            .route("/generate", post(generate).route_layer(limits.tokens.layer()))
            .route("/batch", post(batch))
            .layer(limits.guard.layer())
            .with_state(limits)
    }

    pub async fn service(limits: Limits) -> Service {
        let app = app(limits);
        Box::new(move |method, uri, account| {
            let mut request = Request::builder().method(method).uri(uri);
            if let Some(account) = account {
                request = request.header("account", account);
            }
            let answer = app.clone().oneshot(request.body(Body::empty()).expect("a request"));
            Box::pin(async {
                let (head, body) = answer.await.expect("an answer").into_parts();
                let fields = head.headers.iter();
                Answer {
                    status: head.status.as_u16(),
                    fields: fields.map(|(name, value)| text(name.as_str(), value.as_bytes())).collect(),
                    body: to_bytes(body, usize::MAX).await.expect("a body").to_vec(),
                }
            })
        })
    }
}

mod in_actix {
    use std::rc::Rc;

    use actix_web::test::{TestRequest, call_service, init_service, read_body};
    use actix_web::{App, HttpRequest, web};

    use super::*;

    async fn generate(
        limits: web::Data<Limits>,
        reserved: Decision,
        request: HttpRequest,
    ) -> Result<&'static str, Refusal> {
        let used = request.query_string().trim_start_matches("used=").parse().expect("a number");
        limits.guard.settle(&reserved, [("tokens", used)]).await?;
        Ok("done")
    }

    async fn batch(limits: web::Data<Limits>, request: HttpRequest) -> Result<&'static str, Refusal> {
        limits.batch.take(&request, 2).await.map(|_| "done")
    }

    pub async fn service(limits: Limits) -> Service {
        let get = |text: &'static str| web::get().to(move || ready(text));
        let app = App::new()
            .route("/health", get("well"))
            .route("/", get("hello"))
            .service(web::resource("/search").route(get("found")).wrap(limits.search.middleware()))
            .service(web::resource("/export").route(get("exported")).wrap(limits.export.middleware()))
            .service(
                web::resource("/generate").route(web::post().to(generate)).wrap(limits.tokens.middleware()),
            )
            .route("/batch", web::post().to(batch))
            .wrap(limits.guard.middleware())
            .app_data(web::Data::new(limits));
        let app = Rc::new(init_service(app).await);
        Box::new(move |method, uri, account| {
            let mut request = TestRequest::with_uri(uri).method(method.parse().expect("a method"));
            if let Some(account) = account {
                request = request.insert_header(("account", account));
            }
            let (app, request) = (app.clone(), request.to_request());
            Box::pin(async move {
                let response = call_service(&*app, request).await;
                let fields = response.headers().iter();
                Answer {
                    status: response.status().as_u16(),
                    fields: fields.map(|(name, value)| text(name.as_str(), value.as_bytes())).collect(),
                    body: read_body(response).await.to_vec(),
                }
            })
        })
    }
}

fn text(name: &str, value: &[u8]) -> (String, String) {
    (name.to_owned(), String::from_utf8_lossy(value).into_owned())
}

impl Step {
    /// The same with the names of routes as they are here: no layer is told for which methods its route is declared.
    fn by_path(self) -> Step {
        let named = |text: String| text.replace("GET /", "/");
        let fields = self.fields.into_iter().map(|(name, value)| (name, value.map(named))).collect();
        let body = self.body.map(|body| named(body.to_string()).parse().expect("JSON"));
        Step { fields, body, told: self.told.map(|told| told.into_iter().map(named).collect()), ..self }
    }

    fn check(&self, answer: &Answer, limits: &Limits) {
        let Step { request, at, .. } = self;
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, self.status, "{request} at {at}: {text}");
        for (name, value) in &self.fields {
            assert_eq!(answer.fields.get(&name.to_lowercase()), value.as_ref(), "{request} at {at}: {name}");
        }
        match &self.body {
            Some(Json::String(body)) => assert_eq!(&text, body, "{request} at {at}"),
            Some(body) => {
                assert_eq!(&serde_json::from_str::<Json>(&text).expect("JSON"), body, "{request} at {at}")
            }
            None => {}
        }
        let told = std::mem::take(&mut *limits.told.lock().expect("no panic"));
        if let Some(expected) = &self.told {
            assert_eq!(&told, expected, "{request} at {at}");
        }
    }
}

const FAILS: [Fail; 3] = [Fail::Open, Fail::Closed, Fail::Local];

/// Asks as a step says.
async fn check(service: &Service, step: &Step, limits: &Limits) {
    limits.at.store(step.at, Ordering::Relaxed);
    let (method, uri) = step.request.split_once(' ').expect("a method and an address");
    step.check(&service(method, uri, step.account.as_deref()).await, limits);
}

async fn every_step_of_the_table_holds_in(framework: impl AsyncFn(Limits) -> Service) {
    let Table { steps, away } = table("service");
    let steps: Vec<Step> = steps.into_iter().map(Step::by_path).collect();
    let (mut server, cluster) = (Server::start(), Cluster::start());
    let mut services = Vec::new();
    for fail in FAILS {
        for node in cluster.nodes.iter().chain([&server]) {
            let () = node.call("FLUSHALL");
        }
        let patient = cluster.redis().timeout(PATIENCE);
        for redis in [MemoryLimiter::new().into(), patient, server.redis()] {
            let limits = Limits::new(redis, fail).expect("policies");
            let service = framework(limits.clone()).await;
            for step in &steps {
                check(&service, step, &limits).await;
            }
            limits.guard.close().await;
            services.push((service, limits));
        }
    }
    server.kill();
    // Those on the server, the last of each three.
    for ((service, limits), step) in services.iter().skip(2).step_by(3).zip([&away.open, &away.closed]) {
        check(service, step, limits).await;
    }
}

#[tokio::test]
async fn every_step_of_the_table_holds_in_axum_on_a_server_on_a_cluster_and_without_a_server() {
    every_step_of_the_table_holds_in(in_axum::service).await;
}

#[actix_web::test]
async fn every_step_of_the_table_holds_in_actix_web_on_a_server_on_a_cluster_and_without_a_server() {
    every_step_of_the_table_holds_in(in_actix::service).await;
}
