//! Middleware for actix-web.

use std::borrow::Cow;
use std::future::{Ready, ready};

use actix_web::body::{BoxBody, EitherBody, MessageBody};
use actix_web::dev::{Payload, Service, ServiceRequest, ServiceResponse, Transform};
use actix_web::http::{StatusCode, header};
use actix_web::middleware::{Next, from_fn};
use actix_web::{Error, FromRequest, HttpMessage, HttpRequest, HttpResponse, ResponseError};
use http::request::Parts;
use http::{Extensions, HeaderMap, Response};

use crate::guard::{Decision, Guard, Pattern, Refusal, Refused, Requester, Visit};

/// A response of the service or of a limit.
type Answered<B> = ServiceResponse<EitherBody<B>>;

impl Guard {
    /// Middleware of an application, a scope or a resource of actix-web.
    ///
    /// Functions of the head see the extensions that your own middleware adds, if it puts them as [`http::Extensions`] among
    /// the extensions of the request.
    #[must_use]
    pub fn middleware<S, B>(
        &self,
    ) -> impl Transform<S, ServiceRequest, Response = Answered<B>, Error = Error, InitError = ()> + use<S, B>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
        B: MessageBody + 'static,
    {
        let guard = self.clone();
        from_fn(move |request, next| limit(guard.clone(), request, next))
    }
}

async fn limit<B: MessageBody>(
    guard: Guard,
    request: ServiceRequest,
    next: Next<B>,
) -> Result<Answered<B>, Error> {
    let mut head = head(request.request());
    let outermost = guard.begin(&mut head);
    if let Some(outermost) = &outermost {
        request.extensions_mut().insert(outermost.clone());
    }
    let mut answered = match guard.answer(&head).await {
        Some(answer) => Ok(request.into_response(response(answer)).map_into_right_body()),
        None => next.call(request).await.map(ServiceResponse::map_into_left_body),
    };
    // Only the outermost limit knows the answer: middleware further in may have replaced it.
    match (outermost, &mut answered) {
        (Some(outermost), Ok(answered)) => {
            let is_refused = answered.response_mut().extensions_mut().remove::<Refused>().is_some();
            let has_fields = answered.headers().contains_key("ratelimit");
            append(&outermost.end(is_refused, has_fields), answered.headers_mut());
        }
        (Some(outermost), Err(error)) => {
            outermost.end(error.as_error::<Refusal>().is_some(), true);
        }
        (None, _) => {}
    }
    answered
}

/// The head of a request, with what functions of policies need among its extensions.
fn head(request: &HttpRequest) -> Parts {
    let (mut head, ()) = http::Request::new(()).into_parts();
    // actix-web uses an older version of `http`. What that has read is valid here.
    head.method = request.method().as_str().parse().unwrap_or_default();
    head.uri = request.uri().to_string().parse().unwrap_or_default();
    for (name, value) in request.headers() {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_bytes(value.as_bytes())) {
            head.headers.append(name, value);
        }
    }
    let extensions = request.extensions();
    head.extensions = extensions.get::<Extensions>().cloned().unwrap_or_default();
    extensions.get::<Visit>().cloned().map(|visit| head.extensions.insert(visit));
    request.peer_addr().map(|peer| head.extensions.insert(peer));
    request.match_pattern().map(|pattern| head.extensions.insert(Pattern(pattern)));
    head
}

fn response(answer: Response<String>) -> HttpResponse {
    let (head, body) = answer.into_parts();
    let status = StatusCode::from_u16(head.status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::new(status).set_body(BoxBody::new(body));
    append(&head.headers, response.headers_mut());
    head.extensions.get::<Refused>().map(|refused| response.extensions_mut().insert(*refused));
    response
}

fn append(fields: &HeaderMap, headers: &mut header::HeaderMap) {
    for (name, value) in fields {
        let name = header::HeaderName::from_bytes(name.as_str().as_bytes());
        if let (Ok(name), Ok(value)) = (name, header::HeaderValue::from_bytes(value.as_bytes())) {
            headers.append(name, value);
        }
    }
}

impl ResponseError for Refusal {
    fn status_code(&self) -> StatusCode {
        self.status().as_u16().try_into().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    fn error_response(&self) -> HttpResponse {
        response(self.response().clone())
    }
}

impl FromRequest for Decision {
    type Error = Refusal;
    type Future = Ready<Result<Decision, Refusal>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Decision::of(&head(request)).ok_or_else(Refusal::of_no_limit))
    }
}

impl From<&HttpRequest> for Requester<'_> {
    fn from(request: &HttpRequest) -> Self {
        Requester::of(Cow::Owned(head(request)))
    }
}
