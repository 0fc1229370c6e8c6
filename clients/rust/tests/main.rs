//! The package on real servers.

mod acquire;
mod block;
mod burst;
mod cases;
mod connections;
mod counted;
mod decisions;
mod fields;
mod guard;
mod histories;
mod interface;
mod joint;
mod keys;
mod layers;
mod leases;
mod limits;
mod memory;
mod places;
mod policies;
mod reconnecting;
mod replies;
mod rights;
mod runtimes;
mod server;
mod service;
mod take;
