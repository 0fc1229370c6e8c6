//! The answer to a request that is refused.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use redis::RedisError;
use serde_json::json;

use super::answer::Figures;
use super::decision::Decision;
use crate::commands::Invalid;

/// The answer to a request that is refused: a status, header fields, and problem details of RFC 9457.
///
/// It converts into a `Response` with any body that can be made of a `String`. With features `axum` and `actix` a handler
/// may return it.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    status: StatusCode,
    fields: HeaderMap,
    problem: serde_json::Value,
    why: Why,
    /// The answer of the application's own.
    response: Option<Response<String>>,
}

/// Marks a response as a refusal, so that the outermost limit gives back what was taken for the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

#[derive(Debug)]
enum Why {
    Limited {
        policies: BTreeMap<String, Figures>,
        retry_after: Option<Duration>,
    },
    Away(RedisError),
    /// The application has made a mistake.
    Misused(String),
}

impl Refusal {
    fn new(status: StatusCode, title: &str, why: Why) -> Refusal {
        let problem = json!({"status": status.as_u16(), "title": title});
        Refusal(Box::new(Inner { status, fields: HeaderMap::new(), problem, why, response: None }))
    }

    /// The refusal by a decision, with an answer of the application's own if it has one.
    pub(crate) fn by(decision: &Decision, response: Option<Response<String>>) -> Refusal {
        let (policies, retry_after) = (decision.policies(), decision.retry_after());
        let why = Why::Limited { policies, retry_after };
        let mut refusal = Refusal::new(decision.status(), "Quota Exceeded", why);
        let inner = &mut *refusal.0;
        inner.problem["type"] = "https://iana.org/assignments/http-problem-types#quota-exceeded".into();
        inner.problem["violated-policies"] = decision.violated().into();
        inner.fields = decision.fields();
        inner.response = response.map(|mut response| {
            for (name, value) in &inner.fields {
                response.headers_mut().entry(name).or_insert_with(|| value.clone());
            }
            inner.status = response.status();
            response
        });
        refusal
    }

    pub(crate) fn away(error: RedisError) -> Refusal {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut refusal = Refusal::new(status, "The rate limiter is away", Why::Away(error));
        refusal.0.fields.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        refusal
    }

    pub(crate) fn misused(mistake: &str) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, mistake, Why::Misused(mistake.to_owned()))
    }

    pub(crate) fn of_no_limit() -> Refusal {
        Refusal::misused("no limit is in front of this handler")
    }

    pub(crate) fn response(&self) -> Response<String> {
        let mut response = self.0.response.clone().unwrap_or_else(|| {
            let mut response = Response::new(self.to_string());
            *response.status_mut() = self.0.status;
            *response.headers_mut() = self.0.fields.clone();
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
            response
        });
        response.extensions_mut().insert(Refused);
        response
    }

    /// The answer of middleware. Clients of gRPC get a gRPC status, in header fields alone.
    pub(crate) fn answer(&self, head: &Parts) -> Response<String> {
        let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
        if !kind.starts_with(b"application/grpc") || self.0.response.is_some() {
            return self.response();
        }
        let (status, message) = match &self.0.why {
            Why::Limited { .. } => ("8", "rate limit exceeded"),
            Why::Away(_) => ("14", "the rate limiter is away"),
            Why::Misused(_) => ("13", "a rate limit that cannot be"),
        };
        let mut response = Response::new(String::new());
        response.extensions_mut().insert(Refused);
        let fields = response.headers_mut();
        *fields = self.0.fields.clone();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from_static(status));
        fields.insert("grpc-message", HeaderValue::from_static(message));
        if let Some(wait) = self.retry_after() {
            fields.insert("grpc-retry-pushback-ms", (wait.as_millis() as u64).into());
        }
        response
    }

    /// 429, or 403 if no wait helps, or 503 while Redis is away, or 500 after a mistake of the application, such as a
    /// negative cost.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Whether a limit refuses.
    #[must_use]
    pub fn limited(&self) -> bool {
        matches!(self.0.why, Why::Limited { .. })
    }

    /// After this time the same request is allowed, if no other comes. `None` if no wait helps, or it is not known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if let Why::Limited { retry_after, .. } = self.0.why { retry_after } else { None }
    }

    /// The figures of each policy by its name, if a limit refuses.
    #[must_use]
    pub fn policies(&self) -> BTreeMap<String, Figures> {
        if let Why::Limited { policies, .. } = &self.0.why { policies.clone() } else { BTreeMap::new() }
    }

    /// The header fields `ratelimit-policy`, `ratelimit` and `retry-after`.
    #[must_use]
    pub fn fields(&self) -> &HeaderMap {
        &self.0.fields
    }

    /// The mistake of the application, if it made one.
    pub(crate) fn mistake(&self) -> Option<&str> {
        if let Why::Misused(mistake) = &self.0.why { Some(mistake) } else { None }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        Refusal::misused(&invalid.to_string())
    }
}

/// Writes the problem details.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.problem.fmt(f)
    }
}

impl std::error::Error for Refusal {
    /// Why Redis is away, if it is.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Why::Away(error) = &self.0.why { Some(error) } else { None }
    }
}

impl<B: From<String>> From<Refusal> for Response<B> {
    fn from(refusal: Refusal) -> Response<B> {
        refusal.response().map(B::from)
    }
}
