//! What all layers of a request have taken.

use std::sync::{Arc, Mutex, MutexGuard};

use http::{Extensions, HeaderMap};

use crate::link::locked;
use crate::web::admission::{Admission, Client, Costs};
use crate::web::answer::{Told, fields_of, write_fields};
use crate::web::{Guard, Policy, Refusal};

/// What the [`RateLimitLayer`](crate::web::RateLimitLayer)s in front of a handler have taken for its request. Clones are
/// the same one.
///
/// A handler settles by it what a request really cost. With feature `axum` it is an extractor, and a part of a response,
/// which changes nothing: the layers write the header fields.
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(feature = "axum", doc = "use axum::response::IntoResponse;")]
#[cfg_attr(feature = "axum", doc = "use redis_rl_client::web::{Refusal, Reservation};")]
#[cfg_attr(feature = "axum", doc = "")]
#[cfg_attr(
    feature = "axum",
    doc = "async fn generate(reserved: Reservation) -> Result<impl IntoResponse, Refusal> {"
)]
#[cfg_attr(feature = "axum", doc = "    let settled = reserved.settle([(\"tokens\", 420)]).await?;")]
#[cfg_attr(feature = "axum", doc = "    Ok((settled, \"a text of 420 tokens\"))")]
#[cfg_attr(feature = "axum", doc = "}")]
#[cfg_attr(feature = "axum", doc = "```")]
#[derive(Clone, Debug)]
pub struct Reservation {
    admissions: Arc<Mutex<Vec<Admission>>>,
    /// Where the request comes from, as the outermost layer sees it; none if no layer is in front.
    address: Option<String>,
}

impl Reservation {
    /// That of a request; none if no layer is in front of its handler.
    #[must_use]
    pub fn of(extensions: &Extensions) -> Option<Reservation> {
        extensions.get::<Reservation>().cloned()
    }

    /// That of a request which is the first time seen by a layer.
    pub(crate) fn begun(address: String) -> Reservation {
        Reservation { address: Some(address), ..Reservation::apart() }
    }

    /// That of a request which no layer has seen.
    pub(crate) fn apart() -> Reservation {
        Reservation { admissions: Arc::default(), address: None }
    }

    pub(crate) fn is_apart(&self) -> bool {
        self.address.is_none()
    }

    /// Takes units by another guard, as when the cost stands in the body, for whom the layers have counted.
    ///
    /// A number is the cost by each of its policies; several may have costs of their own, by name. The refusal tells
    /// of all, and what was taken goes back if it is the answer; a request that is answered otherwise keeps it. It is
    /// settled like what the layers took.
    pub async fn take(&self, guard: &Guard, costs: impl Into<Costs>) -> Result<Reservation, Refusal> {
        let client = self.client(|| self.address.clone().unwrap_or_default())?;
        let admission = guard.take_by(&client, &costs.into(), self).await?;
        self.add(admission);
        Ok(self.clone())
    }

    /// Corrects what was taken to what was used, however late: by the names of policies, as in `[("tokens", 420)]`, or a
    /// number if one policy limits the request.
    ///
    /// What is given back was counted when it was taken, and nobody else's units are. What is taken in addition is
    /// counted even if it is over the limit, since it has been used. The last settled cost counts. If Redis is away,
    /// or if the request was answered by a refusal, nothing changes.
    ///
    /// An error, answered 500, is a name that no policy has, a number for several, and a negative cost.
    pub async fn settle(&self, used: impl Into<Costs>) -> Result<Reservation, Refusal> {
        let used = used.into();
        let policies = self.policies();
        let is_unclear = used.is_one_number() && policies.len() != 1;
        let named = || format!("{} policies limit the request: name them", policies.len());
        let checked = used.check(&policies).and_then(|()| if is_unclear { Err(named()) } else { Ok(()) });
        checked.map_err(|why| Refusal::misused(&why))?;
        let admissions = self.admissions().clone();
        for admission in &admissions {
            admission.settle(&used).await;
        }
        Ok(self.clone())
    }

    /// The header fields that tell of all policies, as they stand now.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        let told = self.told(false);
        if told.is_empty() { HeaderMap::new() } else { fields_of(&told, false) }
    }

    fn admissions(&self) -> MutexGuard<'_, Vec<Admission>> {
        locked(&self.admissions)
    }

    pub(crate) fn add(&self, admission: Admission) {
        self.admissions().push(admission);
    }

    /// The request is answered by a refusal: what was taken goes back.
    pub(crate) fn release(&self) {
        self.admissions().iter().for_each(Admission::release);
    }

    /// What is known of each policy, the outermost first; if the request is refused, without what it has taken.
    pub(crate) fn told(&self, is_refused: bool) -> Vec<Told> {
        self.admissions().iter().flat_map(|admission| admission.told(is_refused)).collect()
    }

    /// Those by which it was asked for.
    pub(crate) fn policies(&self) -> Vec<Policy> {
        self.admissions().iter().flat_map(|admission| admission.policies().to_vec()).collect()
    }

    /// Whose units the layers further out have counted, everybody's aside; if nobody's, whom the network address tells.
    pub(crate) fn client(&self, address: impl FnOnce() -> String) -> Result<Client, Refusal> {
        let mut clients: Vec<Client> = Vec::new();
        for admission in self.admissions().iter() {
            for client in admission.clients() {
                if *client != Client::Everybody && !clients.contains(client) {
                    clients.push(client.clone());
                }
            }
        }
        match clients.len() {
            0 => Ok(Client::Address(address())),
            1 => Ok(clients.remove(0)),
            _ => Err(Refusal::misused("Several keys count this request further out: give this limit a key")),
        }
    }

    /// Adds what is known to the response of whatever is further in.
    pub(crate) fn write_fields(&self, is_refused: bool, headers: &mut HeaderMap) {
        let told = self.told(false);
        if !told.is_empty() {
            write_fields(&fields_of(&told, is_refused), headers);
        }
    }
}

#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Reservation {
    type Rejection = Refusal;

    async fn from_request_parts(head: &mut http::request::Parts, _: &S) -> Result<Reservation, Refusal> {
        let reservation = Reservation::of(&head.extensions);
        reservation.ok_or_else(|| Refusal::misused("No RateLimitLayer is in front of this handler"))
    }
}

#[cfg(feature = "axum")]
impl axum::response::IntoResponseParts for Reservation {
    type Error = std::convert::Infallible;

    fn into_response_parts(
        self,
        parts: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        Ok(parts)
    }
}
