//! What a restart, a copy and a dump keep.
