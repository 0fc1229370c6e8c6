//! Middleware for tower.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use redis::aio::ConnectionLike;
use tower_layer::Layer;
use tower_service::Service;

use crate::web::Limiter;

/// Takes units for each request, or refuses it.
///
/// The client comes from a function of the request's head: an address, an account, the name of a key. Requests for
/// which there is `None` are not limited. The response's body has to be made of a `String` for a refusal, as that of
/// axum can.
#[derive(Clone, Debug)]
pub struct RateLimitLayer<C, F> {
    limiter: Limiter<C>,
    client: F,
    cost: i64,
}

impl<C, F: Fn(&Parts) -> Option<String>> RateLimitLayer<C, F> {
    /// A unit for each request of the client.
    pub fn new(limiter: Limiter<C>, client: F) -> RateLimitLayer<C, F> {
        RateLimitLayer { limiter, client, cost: 1 }
    }

    /// So many units for each request.
    ///
    /// # Panics
    ///
    /// If the cost is negative.
    pub fn cost(mut self, cost: i64) -> RateLimitLayer<C, F> {
        assert!(cost >= 0, "the cost of a request is negative: {cost}");
        self.cost = cost;
        self
    }
}

impl<S, C: Clone, F: Clone> Layer<S> for RateLimitLayer<C, F> {
    type Service = RateLimit<S, C, F>;

    fn layer(&self, inner: S) -> RateLimit<S, C, F> {
        RateLimit { inner, layer: self.clone() }
    }
}

/// A service that [`RateLimitLayer`] limits.
#[derive(Clone, Debug)]
pub struct RateLimit<S, C, F> {
    inner: S,
    layer: RateLimitLayer<C, F>,
}

impl<S, C, F, B, R> Service<Request<B>> for RateLimit<S, C, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    F: Fn(&Parts) -> Option<String>,
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
        let (parts, body) = request.into_parts();
        let Some(client) = (self.layer.client)(&parts) else {
            return Box::pin(inner.call(Request::from_parts(parts, body)));
        };
        let request = Request::from_parts(parts, body);
        let limiter = self.layer.limiter.clone();
        let cost = self.layer.cost;
        Box::pin(async move {
            let admission = match limiter.take(client, cost).await {
                Ok(admission) => admission,
                Err(refusal) => return Ok(refusal.into()),
            };
            let mut response = inner.call(request).await?;
            admission.write_fields(response.headers_mut());
            Ok(response)
        })
    }
}
