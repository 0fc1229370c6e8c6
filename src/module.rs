//! What the module registers: the type, the commands, their ACL category, the INFO section.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use crate::server::registration::{Access, Argument, Description, Kind, LoadFailed, Loading};
use crate::server::{MODULE_NAME, OK, info, listeners, neighbors};
use crate::{command, keyspace};
use redis_rl_core::limiter::Algorithm;
use redis_rl_core::request::Verb;

/// The crate's version as MODULE LIST shows it: two digits each for minor and patch.
const VERSION: c_int = 10_000 * number(env!("CARGO_PKG_VERSION_MAJOR"))
    + 100 * number(env!("CARGO_PKG_VERSION_MINOR"))
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> c_int {
    let (mut number, mut rest) = (0, digits.as_bytes());
    while let [digit, after @ ..] = rest {
        number = 10 * number + (*digit - b'0') as c_int;
        rest = after;
    }
    number
}

const CATEGORY: &CStr = c"ratelimit";

/// The module's entry point, called by the server to load it.
///
/// # Safety
///
/// Called only by the server, with a valid context.
#[expect(unsafe_code, reason = "the server finds the module by this name and passes a raw context")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server passed `ctx`.
    let loaded =
        unsafe { Loading::begin(ctx, MODULE_NAME, VERSION) }.and_then(|loading| register(&loading, argc));
    match loaded {
        Ok(()) => OK,
        Err(LoadFailed) => raw::REDISMODULE_ERR as c_int,
    }
}

fn register(loading: &Loading, arguments: c_int) -> Result<(), LoadFailed> {
    loading.refuse_arguments(arguments)?;
    loading.declare_options();
    info::register(loading)?;
    keyspace::create_type(loading)?;
    loading.create_category(CATEGORY);
    loading.create_command::<command::Fixed>(&FIXED, CATEGORY)?;
    loading.create_command::<command::Sliding>(&SLIDING, CATEGORY)?;
    loading.create_command::<command::Log>(&LOG, CATEGORY)?;
    loading.create_command::<command::Bucket>(&BUCKET, CATEGORY)?;
    loading.create_command::<command::All>(&ALL, CATEGORY)?;
    loading.create_command::<command::Peek>(&PEEK, CATEGORY)?;
    loading.create_command::<command::Info>(&INFO, CATEGORY)?;
    loading.create_command::<command::Load>(&LOAD, CATEGORY)?;
    loading.create_command::<command::Apply>(&APPLY, CATEGORY)?;
    neighbors::watch(loading.context);
    listeners::watch(loading.context);
    Ok(())
}

/// What the commands of the algorithms share.
const fn limiting(algorithm: Algorithm) -> Description {
    let verb = Verb::Take(algorithm);
    Description {
        is_fast: true,
        complexity: c"O(T), where T is the number of limit window pairs",
        depends_on_time: true,
        arguments: &[KEY, TIERS, COST, MODE, AT],
        ..Description::new(verb.name(), verb.arity(), Access::Update, c"1.0.0")
    }
}

const FIXED: Description = Description {
    summary: c"Limits requests by one count in each window, aligned to the Unix epoch or to the calendar.",
    ..limiting(Algorithm::Fixed)
};

const SLIDING: Description = Description {
    summary:
        c"Limits requests by this window's count and a share of the previous one's, weighted by its overlap.",
    ..limiting(Algorithm::Sliding)
};

const LOG: Description = Description {
    summary: c"Limits requests exactly, by the time of every unit in the window.",
    complexity: c"O(T) amortized, where T is the number of limit window pairs",
    ..limiting(Algorithm::Log)
};

const BUCKET: Description = Description {
    summary:
        c"Limits requests by a bucket that refills evenly: a burst up to the limit, then an even stream.",
    arguments: &[KEY, TIERS, COST, BUCKET_MODE, AT],
    ..limiting(Algorithm::Bucket)
};

const ALL: Description = Description {
    last_key: -5,
    key_step: 5,
    summary: c"Limits a request by several keys at once: all of them allow it, or nothing is counted.",
    complexity: c"O(N), where N is the number of rows",
    depends_on_time: true,
    arguments: &[ROWS, FORCE, AT],
    ..Description::new(Verb::All.name(), Verb::All.arity(), Access::Update, c"1.0.0")
};

const PEEK: Description = Description {
    is_fast: true,
    summary: c"Shows whether a request would be allowed, without counting it.",
    complexity: c"O(T), where T is the number of limit window pairs",
    depends_on_time: true,
    arguments: &[KEY, TIERS, COST, AT],
    ..Description::new(Verb::Peek.name(), Verb::Peek.arity(), Access::Read, c"1.0.0")
};

const INFO: Description = Description {
    is_fast: true,
    summary: c"Shows what a key counts.",
    complexity: c"O(1)",
    depends_on_time: true,
    arguments: &[KEY],
    ..Description::new(Verb::Info.name(), Verb::Info.arity(), Access::Read, c"1.0.0")
};

const LOAD: Description = Description {
    summary: c"Creates a key from its bytes in a snapshot. Not for applications.",
    complexity: c"O(N), where N is the length of the payload",
    arguments: &[KEY, Argument::new(c"payload", Kind::Text)],
    ..Description::new(c"RL.LOAD", 3, Access::Restore, c"1.0.0")
};

const APPLY: Description = Description {
    last_key: -1,
    key_step: 2,
    summary:
        c"Does to keys what requests did elsewhere. For replicas and append-only files, not for applications.",
    complexity: c"O(N), where N is the number of keys",
    arguments: &[EFFECTS],
    ..Description::new(c"RL.APPLY", -3, Access::Follow, c"1.0.0")
};

const KEY: Argument = Argument::new(c"key", Kind::Key);
const TIERS: Argument = Argument::blocks(
    c"tier",
    &[Argument::new(c"limit", Kind::Integer), Argument::new(c"window", Kind::Text)],
);
const ROWS: Argument = Argument::blocks(
    c"row",
    &[
        KEY,
        Argument::new(c"algorithm", Kind::Text),
        Argument::new(c"limit", Kind::Integer),
        Argument::new(c"window", Kind::Text),
        Argument::new(c"cost", Kind::Integer),
    ],
);
const EFFECTS: Argument = Argument::blocks(c"data", &[KEY, Argument::new(c"effect", Kind::Text)]);
const COST: Argument = Argument::option(c"n", Kind::Integer, c"COST");
const FORCE: Argument = Argument::option(c"force", Kind::PureToken, c"FORCE");
const MODE: Argument = Argument::one_of(c"mode", &[ONE_FORCE, ONE_PARTIAL]);
const BUCKET_MODE: Argument = Argument::one_of(c"mode", &[ONE_FORCE, ONE_PARTIAL, ONE_WITHIN]);
const ONE_FORCE: Argument = Argument::token(c"force", Kind::PureToken, c"FORCE");
const ONE_PARTIAL: Argument = Argument::token(c"partial", Kind::PureToken, c"PARTIAL");
const ONE_WITHIN: Argument = Argument::token(c"duration", Kind::Text, c"WITHIN");
const AT: Argument = Argument::option(c"unix-time-milliseconds", Kind::UnixTime, c"AT");
