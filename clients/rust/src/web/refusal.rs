//! What is answered instead of what was asked for.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use redis::RedisError;
use serde_json::{Value, json};

use crate::Decision;

/// The response to a request that may not go on: a status, header fields, and problem details of RFC 9457.
///
/// It becomes a response with a body that can be made of a `String`; for another body, map that of a
/// `Response<String>`. With feature `axum` a handler may return it.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// Those that tell of limits, without those of the body.
    fields: HeaderMap,
    response: Response<String>,
    why: Why,
}

/// Marks a response that is a refusal, for the outermost layer: what all took goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

/// Marks a response whose header fields tell of the layers further out too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TellsAll;

#[derive(Debug)]
enum Why {
    Limited(Decision),
    Away(RedisError),
    /// The application asked for what cannot be.
    Misused,
}

impl Refusal {
    fn new(status: StatusCode, fields: HeaderMap, problem: &Value, why: Why) -> Refusal {
        let mut response = Response::new(problem.to_string());
        *response.status_mut() = status;
        *response.headers_mut() = fields.clone();
        response.extensions_mut().insert(Refused);
        let content_type = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        Refusal(Box::new(Inner { fields, response, why }))
    }

    pub(crate) fn limited(
        status: StatusCode,
        mut fields: HeaderMap,
        retry_after_seconds: Option<u64>,
        problem: &Value,
        decision: Decision,
    ) -> Refusal {
        if let Some(seconds) = retry_after_seconds {
            fields.insert(RETRY_AFTER, seconds.into());
        }
        Refusal::new(status, fields, problem, Why::Limited(decision))
    }

    /// Whether its header fields tell of the layers further out too.
    pub(crate) fn telling_all(mut self, tells_all: bool) -> Refusal {
        if tells_all {
            self.0.response.extensions_mut().insert(TellsAll);
        }
        self
    }

    pub(crate) fn tells_all(&self) -> bool {
        self.0.response.extensions().get::<TellsAll>().is_some()
    }

    /// Nobody knows whether the request is over the limit.
    pub(crate) fn away(error: RedisError) -> Refusal {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let problem = json!({"status": status.as_u16(), "title": "The rate limiter is away"});
        Refusal::new(status, HeaderMap::new(), &problem, Why::Away(error))
    }

    pub(crate) fn misused(title: &str) -> Refusal {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let problem = json!({"status": status.as_u16(), "title": title});
        Refusal::new(status, HeaderMap::new(), &problem, Why::Misused)
    }

    /// 429, or 403 if no wait helps, or 503 while Redis is away, or 500 if the application asked for what cannot be: a
    /// negative cost, say.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.0.response.status()
    }

    /// The header fields that tell of limits: `ratelimit-policy`, `ratelimit` and `retry-after`.
    #[must_use]
    pub fn fields(&self) -> &HeaderMap {
        &self.0.fields
    }

    /// What was decided, if it is that which refuses.
    #[must_use]
    pub fn decision(&self) -> Option<&Decision> {
        match &self.0.why {
            Why::Limited(decision) => Some(decision),
            Why::Away(_) | Why::Misused => None,
        }
    }

    /// Why Redis could not be asked, if it could not.
    #[must_use]
    pub fn error(&self) -> Option<&RedisError> {
        match &self.0.why {
            Why::Away(error) => Some(error),
            Why::Limited(_) | Why::Misused => None,
        }
    }
}

/// With a body as any framework has it.
impl<B: From<String>> From<Refusal> for Response<B> {
    fn from(refusal: Refusal) -> Response<B> {
        refusal.0.response.map(B::from)
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        self.into()
    }
}
