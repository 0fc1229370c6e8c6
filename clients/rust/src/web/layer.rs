//! Middleware for tower.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use redis::RedisError;
use tower_layer::Layer;
use tower_service::Service;

use crate::Decision;
use crate::web::refusal::{Refused, TellsAll};
use crate::web::{Guard, Refusal, Reservation};

/// Takes units for each request, or refuses it.
///
/// `R` is the body of responses, which the service tells.
#[must_use]
pub struct RateLimitLayer<R> {
    guard: Guard,
    body: Arc<dyn Fn(String) -> R + Send + Sync>,
    on_limited: Option<OnLimited<R>>,
    on_away: Option<OnAway<R>>,
}

type OnLimited<R> = Arc<dyn Fn(&Parts, &Decision, Refusal) -> Response<R> + Send + Sync>;
type OnAway<R> = Arc<dyn Fn(&Parts, &RedisError) -> Option<Response<R>> + Send + Sync>;

impl<R> Clone for RateLimitLayer<R> {
    fn clone(&self) -> RateLimitLayer<R> {
        RateLimitLayer {
            guard: self.guard.clone(),
            body: self.body.clone(),
            on_limited: self.on_limited.clone(),
            on_away: self.on_away.clone(),
        }
    }
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<R> RateLimitLayer<R> {
    /// Of services whose response body can be made of a `String`, as that of axum can.
    pub fn new(guard: Guard) -> RateLimitLayer<R>
    where
        R: From<String> + 'static,
    {
        RateLimitLayer::with_body(guard, R::from)
    }

    /// Of services with any response body: the function makes one of the text of a refusal.
    ///
    /// ```
    /// # use redis_rl_client::web::{Guard, RateLimitLayer};
    /// use bytes::Bytes;
    /// use http_body_util::{BodyExt, Full, combinators::BoxBody};
    ///
    /// # fn layer(guard: Guard) -> RateLimitLayer<BoxBody<Bytes, std::io::Error>> {
    /// RateLimitLayer::with_body(guard, |text| Full::from(text).map_err(|never| match never {}).boxed())
    /// # }
    /// ```
    pub fn with_body(guard: Guard, body: impl Fn(String) -> R + Send + Sync + 'static) -> RateLimitLayer<R> {
        RateLimitLayer { guard, body: Arc::new(body), on_limited: None, on_away: None }
    }

    /// Answers a request that is over a limit, in place of 429 or 403 with problem details.
    ///
    /// The header fields of the refusal are kept, unless the answer has such fields.
    ///
    /// ```
    /// # use redis_rl_client::web::{Guard, RateLimitLayer};
    /// # use axum::{body::Body, response::{Html, IntoResponse}};
    /// # fn layer(guard: Guard) -> RateLimitLayer<Body> {
    /// RateLimitLayer::new(guard).on_limited(|_head, _decision, refusal| {
    ///     (refusal.status(), Html("<h1>Too fast</h1>")).into_response()
    /// })
    /// # }
    /// ```
    pub fn on_limited(
        mut self,
        answer: impl Fn(&Parts, &Decision, Refusal) -> Response<R> + Send + Sync + 'static,
    ) -> RateLimitLayer<R> {
        self.on_limited = Some(Arc::new(answer));
        self
    }

    /// Answers a request while Redis is away, or with `None` lets it pass.
    ///
    /// # Panics
    ///
    /// If the guard has a setting for that: [`fail`](Guard::fail).
    pub fn on_away(
        mut self,
        answer: impl Fn(&Parts, &RedisError) -> Option<Response<R>> + Send + Sync + 'static,
    ) -> RateLimitLayer<R> {
        assert!(self.guard.chosen_fail().is_none(), "fail and on_away are two answers to one question");
        self.on_away = Some(Arc::new(answer));
        self
    }

    /// The answer to a request that the guard refuses.
    fn refused(&self, head: &Parts, refusal: Refusal) -> Response<R> {
        let tells_all = refusal.tells_all();
        let mut response = match (&self.on_limited, refusal.decision().cloned()) {
            (Some(answer), Some(decision)) => {
                let fields = refusal.fields().clone();
                let mut response = answer(head, &decision, refusal);
                for (name, value) in &fields {
                    response.headers_mut().entry(name).or_insert_with(|| value.clone());
                }
                response
            }
            _ => Response::<String>::from(refusal).map(|text| (self.body)(text)),
        };
        response.extensions_mut().insert(Refused);
        if tells_all {
            response.extensions_mut().insert(TellsAll);
        }
        response
    }

    /// The answer in place of the service while Redis is away, if there is one.
    fn away(&self, head: &Parts, reservation: &Reservation) -> Option<Response<R>> {
        let mut response = self.on_away.as_ref()?(head, &reservation.error()?)?;
        response.extensions_mut().insert(Refused);
        Some(response)
    }
}

impl<S, R> Layer<S> for RateLimitLayer<R> {
    type Service = RateLimit<S, R>;

    fn layer(&self, inner: S) -> RateLimit<S, R> {
        RateLimit { inner, layer: self.clone() }
    }
}

/// A service that [`RateLimitLayer`] limits.
pub struct RateLimit<S, R> {
    inner: S,
    layer: RateLimitLayer<R>,
}

impl<S: Clone, R> Clone for RateLimit<S, R> {
    fn clone(&self) -> RateLimit<S, R> {
        RateLimit { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for RateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("layer", &self.layer).finish()
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S, R>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: 'static,
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
        let layer = self.layer.clone();
        let (mut head, body) = request.into_parts();
        let outer = Reservation::of(&head.extensions);
        let is_outermost = outer.is_none();
        let reservation = outer.unwrap_or_else(|| Reservation::begun(Some(layer.guard.address(&head))));
        if is_outermost {
            head.extensions.insert(reservation.clone());
        }
        Box::pin(async move {
            let finished = |mut response: Response<R>| {
                let is_refused = response.extensions().get::<Refused>().is_some();
                // Only the answer that leaves all layers is the request's: until then another may take its place.
                if is_refused && is_outermost {
                    reservation.release();
                }
                if is_outermost && response.extensions_mut().remove::<TellsAll>().is_none() {
                    reservation.write_fields(is_refused, response.headers_mut());
                }
                Ok(response)
            };
            if let Err(refusal) = layer.guard.admit(&head).await {
                return finished(layer.refused(&head, refusal));
            }
            if let Some(response) = layer.away(&head, &reservation) {
                return finished(response);
            }
            finished(inner.call(Request::from_parts(head, body)).await?)
        })
    }
}
