//! Registers the type and the commands with the server, while it loads the module.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use redis_module::raw;

use super::call::entry;
use super::context::Context;
use super::{Command, OK, allocator, api, c_string, functions, log};

/// The context in which the server loads the module.
pub struct Loading<'l> {
    pub context: Context<'l>,
}

/// The description of a command, for COMMAND INFO, COMMAND DOCS and redis-cli's hints.
pub struct Description {
    pub name: &'static CStr,
    /// Number of arguments, the name included; `-n` means at least `n`.
    pub arity: c_int,
    /// How it uses its keys.
    pub access: Access,
    /// Whether it takes a time that does not grow with the number of keys.
    pub is_fast: bool,
    /// Distance between keys. The first key is the first argument.
    pub key_step: c_int,
    /// Position of the last key; if negative, counted from the end, where -1 is the last argument.
    pub last_key: c_int,
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    /// The module version that introduced it.
    pub since: &'static CStr,
    /// Whether the reply depends on the time of the call.
    pub depends_on_time: bool,
    pub arguments: &'static [Argument],
}

impl Description {
    /// A slow command on one key, whose reply does not depend on the time.
    pub const fn new(name: &'static CStr, arity: c_int, access: Access, since: &'static CStr) -> Description {
        let (key_step, last_key, is_fast, depends_on_time) = (1, 1, false, false);
        let (summary, complexity, arguments) = (c"", c"", [].as_slice());
        Description {
            name,
            arity,
            access,
            is_fast,
            key_step,
            last_key,
            summary,
            complexity,
            since,
            depends_on_time,
            arguments,
        }
    }
}

/// How a command uses its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Update,
    /// Creates a key from bytes, as only a server should.
    Restore,
    /// Updates keys as another server did, also when memory is short. With `deny-oom`, a replica that has
    /// `replica-ignore-maxmemory no` would refuse what its master has counted.
    Follow,
}

impl Access {
    /// The server's flags of the command, and those of its keys.
    fn flags(self) -> (&'static str, u32) {
        let update =
            raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;
        let (read, create) = (raw::REDISMODULE_CMD_KEY_RO, raw::REDISMODULE_CMD_KEY_OW);
        match self {
            Access::Read => ("readonly", read | raw::REDISMODULE_CMD_KEY_ACCESS),
            Access::Update => ("write deny-oom", update),
            Access::Restore => ("write deny-oom", create | raw::REDISMODULE_CMD_KEY_INSERT),
            Access::Follow => ("write", update),
        }
    }

    /// Its ACL categories: the server's, and the module's `own`. A dangerous command is not in `own`: whoever may limit may not use it.
    fn categories(self, own: &str) -> String {
        match self {
            Access::Read => format!("read {own}"),
            Access::Update => format!("write {own}"),
            Access::Restore | Access::Follow => "write dangerous".into(),
        }
    }
}

/// An argument of a command.
pub struct Argument {
    name: &'static CStr,
    kind: Kind,
    /// The keyword before its value. A pure token has no value.
    token: Option<&'static CStr>,
    optional: bool,
    multiple: bool,
    /// The arguments of a group, or those to choose from.
    parts: &'static [Argument],
}

impl Argument {
    pub const fn new(name: &'static CStr, kind: Kind) -> Argument {
        Argument { name, kind, token: None, optional: false, multiple: false, parts: &[] }
    }

    pub const fn option(name: &'static CStr, kind: Kind, token: &'static CStr) -> Argument {
        Argument { optional: true, ..Argument::token(name, kind, token) }
    }

    /// A keyword, and its value unless the kind is a pure token.
    pub const fn token(name: &'static CStr, kind: Kind, token: &'static CStr) -> Argument {
        Argument { token: Some(token), ..Argument::new(name, kind) }
    }

    /// A group of arguments, given once or more.
    pub const fn blocks(name: &'static CStr, parts: &'static [Argument]) -> Argument {
        Argument { multiple: true, parts, ..Argument::new(name, Kind::Block) }
    }

    /// At most one of these arguments.
    pub const fn one_of(name: &'static CStr, parts: &'static [Argument]) -> Argument {
        Argument { optional: true, parts, ..Argument::new(name, Kind::OneOf) }
    }
}

/// The type of an argument, as the server numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Key = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
    Integer = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
    Text = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
    UnixTime = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME,
    PureToken = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
    Block = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
    OneOf = raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
}

/// The module cannot be loaded; the server's log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadFailed;

impl Loading<'_> {
    /// Looks up the server's functions and registers the module's name and version.
    ///
    /// # Safety
    ///
    /// Called first in `RedisModule_OnLoad`, with the `ctx` that the server passed.
    pub unsafe fn begin(
        ctx: *mut raw::RedisModuleCtx,
        name: &CStr,
        version: c_int,
    ) -> Result<Self, LoadFailed> {
        let api = raw::REDISMODULE_APIVER_1 as c_int;
        // SAFETY: the caller passes the server's context.
        if unsafe { raw::Export_RedisModule_Init(ctx, name.as_ptr(), version, api) } != OK {
            return Err(LoadFailed);
        }
        // SAFETY: the same.
        let loading = Loading { context: unsafe { Context::new(ctx) } };
        // SAFETY: the crate's functions were just set, and nothing else runs in the module yet.
        if unsafe { raw::RedisModule_SetCommandInfo.and(functions::find()) }.is_none() {
            return Err(loading.failed("this server is older than Redis 7.0"));
        }
        if !allocator::is_aligned() {
            return Err(
                loading.failed("this server's memory is not aligned to 16 bytes: build it with jemalloc")
            );
        }
        std::panic::set_hook(Box::new(|panic| log(&format!("rl: {panic}"))));
        Ok(loading)
    }

    /// Refuses arguments, of which the module takes none: whoever passes one expects it to change something.
    pub fn refuse_arguments(&self, count: c_int) -> Result<(), LoadFailed> {
        if count == 0 { Ok(()) } else { Err(self.failed("the module takes no arguments")) }
    }

    /// Declares what the module handles: I/O errors while loading, asynchronous loading on a replica, marking
    /// keys as modified itself, and atomic slot migration.
    pub fn declare_options(&self) {
        let options = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
            | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD
            | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
            | self.handles_atomic_slot_migration();
        // SAFETY: the context is valid.
        unsafe { api!(RedisModule_SetModuleOptions(self.context.raw(), options as c_int)) };
    }

    /// The option to declare on Valkey for atomic slot migration; 0 on Redis.
    ///
    /// Valkey 9 migrates slots atomically only if every module declares that it is not confused by keys of slots that the
    /// node does not own yet. This one is not: each command accesses only keys that are named in its arguments.
    fn handles_atomic_slot_migration(&self) -> u32 {
        // VALKEYMODULE_OPTIONS_HANDLE_ATOMIC_SLOT_MIGRATION, which Redis does not have: it may give this bit another meaning.
        const OPTION: u32 = 1 << 5;
        // SAFETY: the context is valid; the info is freed once.
        let is_valkey = unsafe {
            let info = api!(RedisModule_GetServerInfo(self.context.raw(), c"server".as_ptr()));
            let version = api!(RedisModule_ServerInfoGetFieldC(info, c"valkey_version".as_ptr()));
            let found = !version.is_null();
            api!(RedisModule_FreeServerInfo(self.context.raw(), info));
            found
        };
        if is_valkey { OPTION } else { 0 }
    }

    /// Creates a native type. `name` has 9 characters; `encoding_version` is that of its stored form.
    ///
    /// # Safety
    ///
    /// The callbacks are sound for every value that is stored as this type.
    pub unsafe fn create_type(
        &self,
        name: &CStr,
        encoding_version: c_int,
        mut methods: raw::RedisModuleTypeMethods,
    ) -> Result<*mut raw::RedisModuleType, LoadFailed> {
        // SAFETY: the server copies name and methods; the rest is the caller's promise.
        let created = unsafe {
            api!(RedisModule_CreateDataType(
                self.context.raw(),
                name.as_ptr(),
                encoding_version,
                &mut methods
            ))
        };
        if created.is_null() { Err(self.failed("cannot create the native type")) } else { Ok(created) }
    }

    /// Creates an ACL category, if the server lets modules do so (Redis 7.4, Valkey 8).
    pub fn create_category(&self, name: &CStr) {
        // SAFETY: the server copies the name.
        let added =
            unsafe { raw::RedisModule_AddACLCategory.map(|add| add(self.context.raw(), name.as_ptr())) };
        if added.is_some_and(|status| status != OK) {
            log("rl: cannot create the ACL category of the module's commands");
        }
    }

    /// Creates a command, adds it to its ACL categories and describes it to the server.
    pub fn create_command<C: Command>(&self, about: &Description, category: &CStr) -> Result<(), LoadFailed> {
        let name = about.name.as_ptr();
        let flags =
            c_string(&format!("{}{}", about.access.flags().0, if about.is_fast { " fast" } else { "" }));
        // SAFETY: the server copies the strings, and calls `entry` as it requires.
        let created = unsafe {
            api!(RedisModule_CreateCommand(
                self.context.raw(),
                name,
                Some(entry::<C>),
                flags.as_ptr(),
                1,
                about.last_key,
                about.key_step
            ))
        };
        if created != OK {
            return Err(self.failed("cannot create a command: is its name taken?"));
        }
        // SAFETY: the context is valid, and the command was just created.
        let created = Created(unsafe { api!(RedisModule_GetCommand(self.context.raw(), name)) });
        created.categorize(about, category);
        if created.describe(about) != OK {
            return Err(self.failed("cannot describe a command"));
        }
        Ok(())
    }

    fn failed(&self, why: &str) -> LoadFailed {
        log(&format!("rl: not loaded: {why}"));
        LoadFailed
    }
}

/// A command that this module has just created.
struct Created(*mut raw::RedisModuleCommand);

impl Created {
    /// Adds the command to the server's ACL categories (Redis 7.2 and newer) and to the module's own (Redis 7.4
    /// and newer, Valkey 8).
    fn categorize(&self, about: &Description, own: &CStr) {
        // SAFETY: these statics are written once, by `Loading::begin`, which comes first.
        let (set, add) =
            unsafe { (raw::RedisModule_SetCommandACLCategories, raw::RedisModule_AddACLCategory) };
        let Some(set) = set else { return };
        let own = if add.is_some() { own.to_str().unwrap_or_default() } else { "" };
        let speed = if about.is_fast { "fast" } else { "slow" };
        let categories = format!("{speed} {}", about.access.categories(own));
        // SAFETY: the command exists, and the server copies the names.
        if unsafe { set(self.0, c_string(categories.trim_end()).as_ptr()) } != OK {
            log("rl: cannot add a command to its ACL categories");
        }
    }

    fn describe(&self, about: &Description) -> c_int {
        let version = raw::RedisModuleCommandInfoVersion {
            version: 1,
            sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
            sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
            sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
        };
        // SAFETY: numbers and pointers, for which zero is valid. A zeroed element ends the list.
        let mut key_specs: [raw::RedisModuleCommandKeySpec; 2] = unsafe { std::mem::zeroed() };
        key_specs[0].flags = u64::from(about.access.flags().1);
        key_specs[0].begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
        key_specs[0].bs.index.pos = 1;
        key_specs[0].find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
        // Key specs count from the first key, unless negative.
        key_specs[0].fk.range.lastkey = if about.last_key < 0 { about.last_key } else { about.last_key - 1 };
        key_specs[0].fk.range.keystep = about.key_step;

        // `arguments` points to these lists until the server has copied them.
        let mut parts: Vec<Vec<raw::RedisModuleCommandArg>> =
            about.arguments.iter().map(|arg| list(arg.parts)).collect();
        let mut arguments = list(about.arguments);
        for (argument, parts) in arguments.iter_mut().zip(&mut parts) {
            argument.subargs = if parts.len() > 1 { parts.as_mut_ptr() } else { null_mut() };
        }
        let info = raw::RedisModuleCommandInfo {
            version: &version,
            summary: about.summary.as_ptr(),
            complexity: about.complexity.as_ptr(),
            since: about.since.as_ptr(),
            history: null_mut(),
            tips: pointer(about.depends_on_time.then_some(c"nondeterministic_output")),
            arity: about.arity,
            key_specs: key_specs.as_mut_ptr(),
            args: arguments.as_mut_ptr(),
        };
        // SAFETY: the command exists; every list ends with a zeroed element, and the server copies all of it.
        unsafe { api!(RedisModule_SetCommandInfo(self.0, &info)) }
    }
}

/// `arguments` as the server's structs, ended by a zeroed one.
fn list(arguments: &[Argument]) -> Vec<raw::RedisModuleCommandArg> {
    // SAFETY: numbers and pointers, for which zero is valid.
    let end = || unsafe { std::mem::zeroed::<raw::RedisModuleCommandArg>() };
    let each = |argument: &Argument| {
        let flag = |set, flag: u32| if set { flag } else { 0 };
        let flags = flag(argument.optional, raw::REDISMODULE_CMD_ARG_OPTIONAL)
            | flag(argument.multiple, raw::REDISMODULE_CMD_ARG_MULTIPLE);
        raw::RedisModuleCommandArg {
            name: argument.name.as_ptr(),
            type_: argument.kind as raw::RedisModuleCommandArgType,
            key_spec_index: if argument.kind == Kind::Key { 0 } else { -1 },
            token: pointer(argument.token),
            flags: flags as c_int,
            ..end()
        }
    };
    arguments.iter().map(each).chain(std::iter::once_with(end)).collect()
}

fn pointer(text: Option<&CStr>) -> *const c_char {
    text.map_or(null(), CStr::as_ptr)
}
