//! What is answered instead of what was asked for.

use std::fmt;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use redis::RedisError;
use serde_json::json;

use super::answer::{Told, fields_of, seconds, violated};
use super::policy::Policy;
use crate::commands::{Decision, Invalid};

/// The header fields of a response to a request that these policies decided on, or its refusal.
pub fn answer(policies: impl AsRef<[Policy]>, decision: &Decision) -> Result<HeaderMap, Refusal> {
    let mut rows = decision.rows.iter().copied();
    let policies = policies.as_ref();
    let told = |policy: &Policy| Told {
        policy: policy.clone(),
        rows: rows.by_ref().take(policy.quotas().len()).collect(),
    };
    let told: Vec<Told> = policies.iter().map(told).collect();
    if decision.limited { Err(Refusal::limited(&told, decision)) } else { Ok(fields_of(&told, false)) }
}

/// The response to a request that may not go on: a status, header fields, and problem details of RFC 9457.
///
/// It becomes a response with a body that can be made of a `String`; for another body, map that of a
/// `Response<String>`. With features `axum` and `actix` a handler may return it.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    status: StatusCode,
    fields: HeaderMap,
    problem: String,
    why: Why,
}

/// Marks a response that is a refusal, for the outermost limit: what all took goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

#[derive(Debug)]
enum Why {
    Limited(Decision),
    Away(RedisError),
    /// The application asked for what cannot be.
    Misused(String),
}

impl Refusal {
    /// By these policies, the outermost first.
    pub(crate) fn limited(told: &[Told], decision: &Decision) -> Refusal {
        let (is_hopeless, status) = match decision.retry_after {
            None => (true, StatusCode::FORBIDDEN),
            Some(_) => (false, StatusCode::TOO_MANY_REQUESTS),
        };
        let problem = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": status.as_u16(),
            "violated-policies": violated(told),
        });
        let mut fields = fields_of(told, !is_hopeless);
        fields.extend(decision.retry_after.map(|wait| (RETRY_AFTER, seconds(wait).into())));
        let (problem, why) = (problem.to_string(), Why::Limited(decision.clone()));
        Refusal(Box::new(Inner { status, fields, problem, why }))
    }

    /// Nobody knows whether the request is over the limit.
    pub(crate) fn away(error: RedisError) -> Refusal {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let problem = json!({"status": status.as_u16(), "title": "The rate limiter is away"}).to_string();
        let fields = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]);
        Refusal(Box::new(Inner { status, fields, problem, why: Why::Away(error) }))
    }

    pub(crate) fn misused(title: &str) -> Refusal {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let problem = json!({"status": status.as_u16(), "title": title}).to_string();
        Refusal(Box::new(Inner {
            status,
            fields: HeaderMap::new(),
            problem,
            why: Why::Misused(title.to_owned()),
        }))
    }

    pub(crate) fn of_no_limit() -> Refusal {
        Refusal::misused("no limit is in front of this handler")
    }

    pub(crate) fn response(&self) -> Response<String> {
        let mut response = Response::new(self.0.problem.clone());
        *response.status_mut() = self.0.status;
        *response.headers_mut() = self.0.fields.clone();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.extensions_mut().insert(Refused);
        response
    }

    /// What middleware answers: to a client of gRPC a status of its own, in header fields alone.
    pub(crate) fn answer(&self, head: &Parts) -> Response<String> {
        let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
        if !kind.starts_with(b"application/grpc") {
            return self.response();
        }
        let (status, message) = match &self.0.why {
            Why::Limited(_) => ("8", "rate limit exceeded"),
            Why::Away(_) => ("14", "the rate limiter is away"),
            Why::Misused(_) => ("13", "a rate limit that cannot be"),
        };
        let mut response = Response::new(String::new());
        let fields = response.headers_mut();
        *fields = self.0.fields.clone();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from_static(status));
        fields.insert("grpc-message", HeaderValue::from_static(message));
        if let Some(wait) = self.decision().and_then(|decision| decision.retry_after) {
            fields.insert("grpc-retry-pushback-ms", (wait.as_millis() as u64).into());
        }
        response.extensions_mut().insert(Refused);
        response
    }

    /// 429, or 403 if no wait helps, or 503 while Redis is away, or 500 if the application asked for what cannot be: a
    /// negative cost, say.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The header fields besides that of the body: `ratelimit-policy`, `ratelimit` and `retry-after`.
    #[must_use]
    pub fn fields(&self) -> &HeaderMap {
        &self.0.fields
    }

    /// What was decided, if it is that which refuses.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.0.why {
            Why::Limited(decision) => Some(decision),
            Why::Away(_) | Why::Misused(_) => None,
        }
    }

    /// Why Redis could not be asked, if it could not.
    #[must_use]
    pub fn error(&self) -> Option<&RedisError> {
        match &self.0.why {
            Why::Away(error) => Some(error),
            Why::Limited(_) | Why::Misused(_) => None,
        }
    }

    /// What the application has asked for that cannot be, if it has.
    pub(crate) fn mistake(&self) -> Option<&str> {
        match &self.0.why {
            Why::Misused(mistake) => Some(mistake),
            Why::Limited(_) | Why::Away(_) => None,
        }
    }
}

/// Of what cannot be.
impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Refusal {
        Refusal::misused(&invalid.to_string())
    }
}

/// The problem details.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.problem)
    }
}

impl std::error::Error for Refusal {}

/// With a body as any framework has it.
impl<B: From<String>> From<Refusal> for Response<B> {
    fn from(refusal: Refusal) -> Response<B> {
        refusal.response().map(B::from)
    }
}
