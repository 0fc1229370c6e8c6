//! The Lua scripts of other limiters, as their installed packages have them.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use redis::Connection;

use crate::report::Report;
use crate::workload::{Answer, KEY, NUMBER, Workload};

/// Prints the version of `limits`, and its scripts that take from a limit.
const LIMITS: &str = "
import limits, os
folder = os.path.join(os.path.dirname(limits.__file__), 'resources/redis/lua_scripts')
read = lambda name: open(os.path.join(folder, name + '.lua')).read()
scripts = map(read, ['incr_expire', 'acquire_sliding_window', 'acquire_moving_window'])
print(limits.__version__, *scripts, sep='\\0', end='')
";

/// Prints the version of `litellm`, and the script of its proxy that takes from several limits. Does not import
/// the package, which has a hundred dependencies.
const LITELLM: &str = "
import ast, importlib.metadata, importlib.util, os
folder = importlib.util.find_spec('litellm').submodule_search_locations[0]
source = open(os.path.join(folder, 'proxy/hooks/parallel_request_limiter_v3.py')).read()
for node in ast.parse(source).body:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        if getattr(target, 'id', '') == 'CHECK_AND_INCREMENT_BY_N_SCRIPT':
            print(importlib.metadata.version('litellm'), ast.literal_eval(node.value), sep='\\0', end='')
";

/// Prints the version of `rate-limit-redis`, and the script that counts a request: the first that its store loads.
const RATE_LIMIT_REDIS: &str = "
const { RedisStore } = require('rate-limit-redis');
const file = require('path').join(require.resolve('rate-limit-redis'), '../../package.json');
const scripts = [];
const sendCommand = async (...words) => { scripts.push(words[2]); return ''; };
new RedisStore({ sendCommand }).init({ windowMs: 60000 }).then(() => {
  const { version } = JSON.parse(require('fs').readFileSync(file));
  process.stdout.write([version, scripts[0]].join('\\0'));
});
";

/// The scripts of each installed package, or in [`Loaded`] their digests.
#[derive(Default)]
struct OfPackages {
    /// Fixed window, sliding counter and log.
    limits: Option<[String; 3]>,
    /// A window from the first request.
    rate_limit_redis: Option<[String; 1]>,
    /// Check and increment of several counters.
    litellm: Option<[String; 1]>,
}

/// The scripts.
#[derive(Default)]
pub struct Scripts {
    /// Names and versions of the packages.
    pub packages: Vec<String>,
    of: OfPackages,
}

/// The scripts in a server.
pub struct Loaded(OfPackages);

impl Scripts {
    /// Asks python3 and node for the packages, and notes which are missing.
    pub fn find(report: &mut Report) -> Scripts {
        let mut packages = Vec::new();
        let (python, node) = (["python3", "-c"], ["node", "-e"]);
        let of = OfPackages {
            limits: find("limits", python, LIMITS, &mut packages, report),
            rate_limit_redis: find("rate-limit-redis", node, RATE_LIMIT_REDIS, &mut packages, report),
            litellm: find("litellm", python, LITELLM, &mut packages, report),
        };
        Scripts { packages, of }
    }

    /// Loads them into a server.
    pub fn load(&self, connection: &mut Connection) -> Result<Loaded> {
        let OfPackages { limits, rate_limit_redis, litellm } = &self.of;
        Ok(Loaded(OfPackages {
            limits: load(limits, connection)?,
            rate_limit_redis: load(rate_limit_redis, connection)?,
            litellm: load(litellm, connection)?,
        }))
    }
}

/// The scripts of a package, whose name and version are added to `packages`. Reports it if they are missing.
fn find<const N: usize>(
    package: &str,
    interpreter: [&str; 2],
    question: &str,
    packages: &mut Vec<String>,
    report: &mut Report,
) -> Option<[String; N]> {
    let (version, scripts) = ask(interpreter, question)
        .inspect_err(|error| report.skip(&format!("Lua scripts of the package `{package}`"), error))
        .ok()?;
    packages.push(format!("`{package}` {version}"));
    Some(scripts)
}

/// The digests of the scripts, which the server then has.
fn load<const N: usize>(
    scripts: &Option<[String; N]>,
    connection: &mut Connection,
) -> Result<Option<[String; N]>> {
    let Some(scripts) = scripts else { return Ok(None) };
    let mut digests = scripts.clone();
    for script in &mut digests {
        *script = redis::cmd("SCRIPT").arg("LOAD").arg(&*script).query(connection)?;
    }
    Ok(Some(digests))
}

/// The version of a package, and its scripts.
fn ask<const N: usize>([program, option]: [&str; 2], question: &str) -> Result<(String, [String; N])> {
    let output =
        Command::new(program).args([option, question]).output().with_context(|| format!("no {program}"))?;
    ensure!(output.status.success(), "not installed, or not where this version keeps them");
    let answer = String::from_utf8(output.stdout)?;
    let mut parts = answer.split('\0').map(str::to_owned);
    let version = parts.next().unwrap_or_default();
    match parts.collect::<Vec<_>>().try_into() {
        Ok(scripts) => Ok((version, scripts)),
        Err(_) => bail!("not in this version"),
    }
}

impl Loaded {
    /// Requests to one key with one tier, with keys and arguments as the packages send them: the window of
    /// `rate-limit-redis`, and the fixed window, sliding counter and log of `limits`.
    pub fn one_key(&self) -> Vec<Workload> {
        let window = self.0.rate_limit_redis.as_ref().map(|[digest]| {
            let name = "Lua, window from the first request (`rate-limit-redis`)";
            Workload::new(name, format!("EVALSHA {digest} 1 rl:{KEY} 60000"), Answer::Any)
        });
        window.into_iter().chain(self.limits()).collect()
    }

    fn limits(&self) -> Vec<Workload> {
        let Some([fixed, sliding, log]) = &self.0.limits else { return Vec::new() };
        let previous = format!("LIMITS:{{{KEY}}}/-1");
        let last_window = format!("SET {previous} 1000 PX 60000");
        // The package sends the time in seconds too. That it is constant here saves the script nothing.
        let time = "1700000000.123456";
        vec![
            Workload::new(
                "Lua, fixed window (`limits`)",
                format!("EVALSHA {fixed} 1 LIMITS:{KEY} 60 1"),
                Answer::Any,
            ),
            Workload::new(
                "Lua, sliding window counter (`limits`)",
                format!("EVALSHA {sliding} 2 {previous} LIMITS:{{{KEY}}} 1000000 60 1"),
                Answer::True,
            )
            .after(move |_| vec![last_window.clone()]),
            Workload::new(
                "Lua, list of times (`limits`)",
                format!("EVALSHA {log} 1 LIMITS:{KEY} {time} 1000000 60 1"),
                Answer::True,
            ),
        ]
    }

    /// A request that `litellm` limits by three counters in one call, with limit, cost, time to live and window of
    /// each, and keys named like the package's.
    pub fn three_keys(&self) -> Option<Workload> {
        let [digest] = self.0.litellm.as_ref()?;
        let keys = |kind| format!("{{{kind}:{NUMBER}}}:window {{{kind}:{NUMBER}}}:requests");
        let keys = ["user", "team", "model"].map(keys).join(" ");
        let quotas = ["1000000 1 60 60"; 3].join(" ");
        Some(Workload::new(
            "Lua, three keys (`litellm`)",
            format!("EVALSHA {digest} 6 {keys} {quotas}"),
            Answer::Allowed,
        ))
    }
}
