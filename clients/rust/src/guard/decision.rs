//! What guards have decided for a request, as it was at one time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::answer::{Figures, fields_of, seconds, violated};
use super::met::Met;
use super::visit::Visit;

/// What guards have decided for a request so far, and the figures of its policies.
///
/// With features `axum` and `actix` it is an extractor. A handler passes it to [`take`](crate::web::Guard::take),
/// [`settle`](crate::web::Guard::settle) and [`hold`](crate::web::Guard::hold), which add to the request and leave the figures
/// here as they are.
#[derive(Clone)]
pub struct Decision {
    pub(super) visit: Visit,
    /// `None` of a client that was named by its key.
    pub(super) head: Option<Arc<Parts>>,
    pub(super) met: Vec<Met>,
    /// Whether a policy refuses, with the wait, if one helps.
    pub(super) refused: Option<Option<Duration>>,
    /// The name of the places of which none was free.
    pub(super) full: Option<(String, Figures)>,
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision").field("policies", &self.policies()).finish_non_exhaustive()
    }
}

impl Decision {
    /// The decision on a request so far. `None` if no limit is in front of the handler.
    #[must_use]
    pub fn of(head: &Parts) -> Option<Decision> {
        let visit = head.extensions.get::<Visit>()?;
        let head = Some(Arc::new(head.clone()));
        Some(Decision { head, ..Decision::by(visit, visit.met()) })
    }

    /// What is known of a request that is not refused.
    pub(super) fn by(visit: &Visit, met: Vec<Met>) -> Decision {
        Decision { visit: visit.clone(), head: None, met, refused: None, full: None }
    }

    /// Whether a policy refuses. Those of a dry run never do.
    #[must_use]
    pub fn limited(&self) -> bool {
        self.full.is_some() || self.refused.is_some()
    }

    /// Whether the request may pass, as it also may while Redis is away. The contrary of [`limited`](Decision::limited).
    #[must_use]
    pub fn allowed(&self) -> bool {
        !self.limited()
    }

    /// After this time the same request is allowed, if no other comes. `None` if it was allowed, and if no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.refused.flatten()
    }

    /// The figures of each policy by its name, those of dry runs too. While Redis is away there are none.
    #[must_use]
    pub fn policies(&self) -> BTreeMap<String, Figures> {
        let figures = |met: &Met| Some((met.asked.policy.name().to_owned(), Figures::of(met.rows.clone())?));
        self.met.iter().filter_map(figures).chain(self.full.clone()).collect()
    }

    /// The status of an answer: 200, 429, or 403 if no wait helps.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.refused {
            Some(None) => StatusCode::FORBIDDEN,
            None if self.full.is_none() => StatusCode::OK,
            _ => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// The header fields of all policies, with `retry-after` if there is a wait. Empty if nothing was decided.
    #[must_use]
    pub fn fields(&self) -> HeaderMap {
        let mut fields = fields_of(&self.met, self.limited(), self.status() == StatusCode::TOO_MANY_REQUESTS);
        fields.extend(self.retry_after().map(|wait| (RETRY_AFTER, seconds(wait).into())));
        fields
    }

    /// The names of what refuses, as problem details have them.
    pub(super) fn violated(&self) -> Vec<String> {
        violated(&self.met).into_iter().chain(self.full.iter().map(|(name, _)| name.clone())).collect()
    }
}
