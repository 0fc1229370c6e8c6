//! What is answered instead of what was asked for.

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

/// The response to a request that may not go on: a status, header fields, and problem details of RFC 9457.
#[derive(Debug)]
pub struct Refusal(Box<Response<String>>);

impl Refusal {
    pub(crate) fn new(
        status: StatusCode,
        mut fields: HeaderMap,
        retry_after_seconds: Option<u64>,
        problem: &Value,
    ) -> Refusal {
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = retry_after_seconds {
            fields.insert(RETRY_AFTER, seconds.into());
        }
        let mut response = Response::new(problem.to_string());
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        Refusal(Box::new(response))
    }

    /// Nobody knows whether the request is over the limit.
    pub(crate) fn away() -> Refusal {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let problem = json!({"status": status.as_u16(), "title": "The rate limiter is away"});
        Refusal::new(status, HeaderMap::new(), None, &problem)
    }

    /// The application asked for what no request may take.
    pub(crate) fn negative_cost() -> Refusal {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        let problem = json!({"status": status.as_u16(), "title": "The cost of a request is negative"});
        Refusal::new(status, HeaderMap::new(), None, &problem)
    }

    /// 429, or 403 if no wait helps, or 503 while Redis is away, or 500 for a negative cost.
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }
}

/// With a body as any framework has it.
impl<B: From<String>> From<Refusal> for Response<B> {
    fn from(refusal: Refusal) -> Response<B> {
        refusal.0.map(B::from)
    }
}
