//! The contract, sentence by sentence, on a real server.

#[path = "../harness/mod.rs"]
mod harness;

mod clock;
mod designs;
mod docs;
mod info;
mod keyspace;
mod limits;
mod persistence;
mod refusals;
mod registration;
mod replication;
mod replies;
mod traffic;
