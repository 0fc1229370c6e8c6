//! Middleware for tower, and with it for axum and hyper.

use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::guard::{Guard, Refused};

impl Guard {
    /// Middleware for services whose response body can be made of a `String`, as that of axum can.
    pub fn layer(&self) -> Guard {
        self.clone()
    }
}

impl<S> Layer<S> for Guard {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, guard: self.clone() }
    }
}

/// A service that a [`Guard`] limits.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    guard: Guard,
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was found ready is the one to call.
        let ready = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, ready);
        let guard = self.guard.clone();
        let (mut head, body) = request.into_parts();
        let outermost = guard.begin(&mut head);
        Box::pin(async move {
            let mut response = match guard.answer(&head).await {
                Some(answer) => answer.map(R::from),
                None => inner.call(Request::from_parts(head, body)).await?,
            };
            // Only the outermost limit knows the answer: middleware further in may have replaced it.
            if let Some(outermost) = outermost {
                let is_refused = response.extensions_mut().remove::<Refused>().is_some();
                for (name, value) in &outermost.end(is_refused, response.headers().contains_key("ratelimit"))
                {
                    response.headers_mut().append(name, value.clone());
                }
            }
            Ok(response)
        })
    }
}
