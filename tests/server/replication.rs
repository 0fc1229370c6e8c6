//! What replicas and the append-only file are sent.
