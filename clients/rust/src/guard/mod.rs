//! What decides on requests: leases, places in flight, and guards of web services.
#![cfg_attr(
    not(all(feature = "axum", feature = "actix")),
    allow(dead_code, unused_imports, reason = "adapters use different parts")
)]

mod acquire;
mod answer;
mod asker;
mod block;
mod client;
mod decision;
#[expect(clippy::module_inception, reason = "the folder is named after its main type")]
mod guard;
mod leases;
mod met;
mod outages;
mod places;
mod policies;
mod policy;
mod queues;
mod refusal;
mod requester;
mod visit;

pub use self::{
    answer::Figures,
    client::client_address,
    decision::Decision,
    guard::{Fail, Guard},
    met::{Fields, FieldsOn},
    outages::Outage,
    policies::Policies,
    policy::Policy,
    refusal::Refusal,
    requester::{Costs, Requester},
};
pub use acquire::Acquire;
pub(crate) use client::Pattern;
pub use leases::Leases;
pub use places::{Hold, Places};
pub(crate) use refusal::Refused;
pub(crate) use visit::Visit;
