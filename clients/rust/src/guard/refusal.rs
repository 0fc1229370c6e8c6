//! The answer to a request that is refused.

use std::fmt;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use redis::RedisError;
use serde_json::json;

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
    why: Why,
    response: Response<String>,
    /// Whether the response is the application's own.
    is_own: bool,
}

/// Marks a response as a refusal, so that the outermost limit gives back what was taken for the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

#[derive(Debug)]
enum Why {
    Limited(Decision),
    Away(RedisError),
    /// The application has made a mistake.
    Misused(String),
}

impl Refusal {
    fn new(status: StatusCode, why: Why, mut problem: serde_json::Value, fields: HeaderMap) -> Refusal {
        problem["status"] = status.as_u16().into();
        let mut response = Response::new(problem.to_string());
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        response.extensions_mut().insert(Refused);
        Refusal(Box::new(Inner { why, response, is_own: false }))
    }

    /// The refusal by a decision, with an answer of the application's own if it has one.
    pub(crate) fn by(decision: Decision, own: Option<Response<String>>) -> Refusal {
        let problem = json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "violated-policies": decision.violated(),
        });
        let (status, fields) = (decision.status(), decision.fields());
        let mut refusal = Refusal::new(status, Why::Limited(decision), problem, fields.clone());
        if let Some(mut own) = own {
            for (name, value) in &fields {
                own.headers_mut().entry(name).or_insert_with(|| value.clone());
            }
            own.extensions_mut().insert(Refused);
            (refusal.0.response, refusal.0.is_own) = (own, true);
        }
        refusal
    }

    pub(crate) fn away(error: RedisError) -> Refusal {
        let fields = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("1"))]);
        let problem = json!({"title": "The rate limiter is away"});
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, Why::Away(error), problem, fields)
    }

    pub(crate) fn misused(mistake: &str) -> Refusal {
        let why = Why::Misused(mistake.to_owned());
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why, json!({"title": mistake}), HeaderMap::new())
    }

    pub(crate) fn of_no_limit() -> Refusal {
        Refusal::misused("no limit is in front of this handler")
    }

    /// The answer of middleware. Clients of gRPC get a gRPC status, in header fields alone.
    pub(crate) fn answer(self, head: &Parts) -> Response<String> {
        let kind = head.headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
        let wait = self.retry_after();
        let Inner { why, mut response, is_own } = *self.0;
        if !kind.starts_with(b"application/grpc") || is_own {
            return response;
        }
        let (status, message) = match why {
            Why::Limited(_) => ("8", "rate limit exceeded"),
            Why::Away(_) => ("14", "the rate limiter is away"),
            Why::Misused(_) => ("13", "a rate limit that cannot be"),
        };
        response.body_mut().clear();
        *response.status_mut() = StatusCode::OK;
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert("grpc-status", HeaderValue::from_static(status));
        fields.insert("grpc-message", HeaderValue::from_static(message));
        fields.extend(wait.map(|wait| {
            let name = HeaderName::from_static("grpc-retry-pushback-ms");
            (name, HeaderValue::from(wait.as_millis() as u64))
        }));
        response
    }

    pub(crate) fn response(&self) -> &Response<String> {
        &self.0.response
    }

    /// What was decided, if a limit refuses.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        if let Why::Limited(decision) = &self.0.why { Some(decision) } else { None }
    }

    /// 429, or 403 if no wait helps, or 503 while Redis is away, or 500 after a mistake of the application, such as a
    /// negative cost.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.response.status()
    }

    /// After this time the same request is allowed, if no other comes. `None` if no wait helps, or it is not known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision()?.retry_after()
    }

    /// The header fields of the answer.
    #[must_use]
    pub fn fields(&self) -> &HeaderMap {
        self.0.response.headers()
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

/// Writes the body of the answer: problem details, unless the application has an answer of its own.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.response.body())
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
        refusal.0.response.map(B::from)
    }
}
