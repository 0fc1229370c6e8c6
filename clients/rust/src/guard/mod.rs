//! What decides on requests: leases, places in flight, and guards of web services.
#![cfg_attr(
    not(all(feature = "axum", feature = "actix")),
    allow(dead_code, unused_imports, reason = "adapters use different parts")
)]

#[cfg(feature = "web")]
mod answer;
mod asker;
mod away;
#[cfg(feature = "web")]
mod block;
#[cfg(feature = "web")]
mod client;
#[cfg(feature = "web")]
mod decision;
#[cfg(feature = "web")]
#[expect(clippy::module_inception, reason = "the folder is named after its main type")]
mod guard;
mod leases;
mod places;
#[cfg(feature = "web")]
mod policies;
#[cfg(feature = "web")]
mod policy;
#[cfg(feature = "web")]
mod refusal;
#[cfg(feature = "web")]
mod requester;
#[cfg(feature = "web")]
mod visit;

#[cfg(feature = "web")]
pub use self::{
    answer::{Fields, FieldsOn, Figures},
    away::Outage,
    client::client_address,
    decision::Decision,
    guard::{Fail, Guard},
    policies::Policies,
    policy::Policy,
    refusal::Refusal,
    requester::{Costs, Requester},
};
#[cfg(feature = "web")]
pub(crate) use client::Pattern;
pub use leases::Leases;
pub use places::{Hold, Places};
#[cfg(feature = "web")]
pub(crate) use refusal::Refused;
#[cfg(feature = "web")]
pub(crate) use visit::Visit;
