//! Policies, guards, and services of axum that they limit.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request};
use redis_rl_client::web::{Guard, Policies, Policy};
use tower::ServiceExt;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::server::Server;

pub fn policy(name: &str, quotas: &str) -> Policy {
    Policy::new(name, quotas).expect("a policy")
}

pub fn guard(server: &Server, policies: impl Into<Policies>) -> Guard {
    Guard::new(server.redis(), policies.into()).expect("policies")
}

/// A client says who it is.
pub fn account(head: &Parts) -> Option<String> {
    Some(head.headers.get("account")?.to_str().ok()?.to_owned())
}

/// What a service answers.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// Empty if there is none. There are no two.
    pub fn field(&self, name: &str) -> &str {
        assert!(self.headers.get_all(name).iter().count() <= 1, "{self:?}");
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }
}

/// A request of 192.0.2.1 that nobody is logged in for.
pub async fn ask(app: &Router, path: &str) -> Answer {
    ask_as(app, "GET", path, "").await
}

pub async fn ask_as(app: &Router, method: &str, path: &str, account: &str) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    if !account.is_empty() {
        request = request.header("account", account);
    }
    let request = request.extension(SocketAddr::from(([192, 0, 2, 1], 1)));
    let request = request.body(Body::empty()).expect("a request");
    let (head, body) = app.clone().oneshot(request).await.expect("a response").into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    let body = String::from_utf8(body.to_vec()).expect("UTF-8");
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

/// What this thread warns of.
#[derive(Clone, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Those since the last time.
    pub fn told(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_rl_client")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &Field, value: &dyn Debug| {
            self.0.lock().expect("no panic").push(format!("{value:?}"));
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
