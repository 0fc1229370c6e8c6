//! The texts of errors.

pub const LIMIT: &str = "ERR limit must be an integer from 0 to 9007199254740991";
pub const WINDOW: &str = "ERR window must be a positive integer with a unit of ms, s, m, h, d or w, or none for seconds, from 1ms to 3650d; in RL.FIXED also 1mo to 120mo";
pub const MONTHS: &str = "ERR window in months is only for RL.FIXED";
pub const SAME_WINDOW: &str = "ERR window must be different in each limit window pair";
pub const PAIRS: &str = "ERR limit window pairs must be from 1 to 8";
pub const COST: &str = "ERR COST must be an integer from -9007199254740991 to 9007199254740991";
pub const AT: &str = "ERR AT must be a Unix time in milliseconds from 0 to 9007199254740991";
pub const SYNTAX: &str = "ERR syntax error";
pub const FORCE_AND_PARTIAL: &str = "ERR FORCE and PARTIAL options at the same time are not compatible";
pub const PARTIAL: &str = "ERR PARTIAL is an option of RL.FIXED, RL.SLIDING, RL.LOG and RL.BUCKET only";
pub const WITHIN: &str = "ERR WITHIN must be a positive integer with a unit of ms, s, m, h, d or w, or none for seconds, from 1ms to 3650d";
pub const WITHIN_AND_OTHERS: &str =
    "ERR WITHIN and FORCE or PARTIAL options at the same time are not compatible";
pub const WITHIN_OF_BUCKET: &str = "ERR WITHIN is an option of RL.BUCKET only";
pub const WRONGTYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

// Of rows and keys.
pub const ALGORITHM: &str = "ERR algorithm must be FIXED, SLIDING, LOG or BUCKET";
pub const ROW_COST: &str = "ERR cost must be an integer from -9007199254740991 to 9007199254740991";
pub const ROW: &str = "ERR each row must be key algorithm limit window cost";
pub const ROWS: &str = "ERR rows must be from 1 to 64";
pub const ROWS_OF_A_KEY: &str = "ERR rows of one key must be from 1 to 8";
pub const ROWS_DIFFER: &str = "ERR rows of one key must have the same algorithm and the same cost";
pub const ROWS_OF_A_WINDOW: &str = "ERR window must be different in each row of one key";
pub const LIVE_WINDOWS: &str = "ERR window must be one of at most 8 in a key that still count";
pub const EFFECT: &str = "ERR effect is not valid";
