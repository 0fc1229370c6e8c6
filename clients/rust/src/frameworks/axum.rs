//! An extractor and a response for handlers of axum.

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;

use crate::guard::{Decision, Refusal};

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.into()
    }
}

impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = Refusal;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Decision, Refusal> {
        Decision::of(head).ok_or_else(Refusal::of_no_limit)
    }
}
