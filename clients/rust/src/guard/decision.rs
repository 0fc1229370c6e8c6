//! What guards have decided for a request, as it was at one time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::answer::{Figures, Told, fields_of, seconds, violated};
use super::visit::{Part, Visit, told};

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
    pub(super) told: Vec<Told>,
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
        Some(Decision {
            head: Some(Arc::new(head.clone())),
            ..Decision::by(visit, &visit.parts(), &[], None)
        })
    }

    /// What is decided by these parts, some of which came before a refusal.
    pub(super) fn by(
        visit: &Visit,
        parts: &[Arc<Part>],
        before: &[Arc<Part>],
        full: Option<(String, Figures)>,
    ) -> Decision {
        let refused = parts.iter().filter(|part| !part.is_dry_run()).find_map(|part| part.limited());
        let goes_back = (refused.is_some() || full.is_some()) && !visit.is_used();
        let told = told(parts, before, goes_back);
        Decision { visit: visit.clone(), head: None, told, refused, full }
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
        let figures = |told: &Told| Some((told.policy.name().to_owned(), Figures::of(told.rows.clone())?));
        self.told.iter().filter_map(figures).chain(self.full.clone()).collect()
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
        let mut fields =
            fields_of(&self.told, self.limited(), self.status() == StatusCode::TOO_MANY_REQUESTS);
        fields.extend(self.retry_after().map(|wait| (RETRY_AFTER, seconds(wait).into())));
        fields
    }

    /// The names of what refuses, as problem details have them.
    pub(super) fn violated(&self) -> Vec<String> {
        violated(&self.told).into_iter().chain(self.full.iter().map(|(name, _)| name.clone())).collect()
    }
}
