//! The documented behavior, sentence by sentence, on real servers.

mod all;
mod clock;
mod clock_steps;
mod cluster;
mod crash;
mod designs;
mod docs;
mod failover;
mod fixtures;
mod histories;
mod hostile;
mod info;
mod keyspace;
mod limits;
mod load;
mod memory;
mod nodes;
mod own_expiry;
mod payload;
mod persistence;
mod refunds;
mod refusals;
mod registration;
mod replication;
mod replies;
mod traffic;
