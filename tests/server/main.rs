//! The documented behavior, sentence by sentence, on real servers.
//!
//! What a caller sees:
//!
//! - `replies`: what the commands reply; `refusals`: errors of single keys, and that they change nothing.
//! - `limits`: what counts as used, and for how long; `refunds`: giving back as of a time; `partial`: as many units as fit.
//! - `bucket`: RL.BUCKET to the integer, and what it replaces; `within`: those who wait in turn.
//! - `all`: several keys in one step, all or nothing.
//! - `calendar`: weeks and months of RL.FIXED.
//! - `recipes`: what docs/recipes.md promises; `designs`: three well-known designs, replayed as their authors describe them.
//! - `clock`: the clock that decides without AT; `clock_steps`: it steps, and times at the edges of windows and years.
//! - `info`: the section of INFO; `registration`: what COMMAND tells of the commands.
//! - `docs`: every session in README.md and docs.
//!
//! Keys and memory:
//!
//! - `keyspace`: time to live, events, WATCH, client-side caching; `own_expiry`: a time to live that a user sets.
//! - `memory`: all of it is freed, and running out of it does no harm.
//! - `neighbors`: another module that writes to any key meanwhile; `emptied`: what it never sees.
//!
//! Files, replicas and clusters:
//!
//! - `persistence`: restarts, copies and dumps; `load`: RL.LOAD; `fixtures`: files of earlier versions.
//! - `replication`: what copies are sent, and that they hold the same; `apply`: RL.APPLY itself.
//! - `crash`, `failover`, `lifecycles`: servers are killed, replicas promoted, connections lost.
//! - `cluster`: slots move while clients send.
//! - `hostile`: random commands, payloads, files and streams.
//!
//! `helpers` is what several of them use.

mod all;
mod apply;
mod bucket;
mod calendar;
mod clock;
mod clock_steps;
mod cluster;
mod crash;
mod designs;
mod docs;
mod emptied;
mod failover;
mod fixtures;
mod helpers;
mod hostile;
mod info;
mod keyspace;
mod lifecycles;
mod limits;
mod load;
mod memory;
mod neighbors;
mod own_expiry;
mod partial;
mod persistence;
mod recipes;
mod refunds;
mod refusals;
mod registration;
mod replication;
mod replies;
mod within;
