//! The Lua scripts of PyPI packages, read from the installed packages.

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

/// The scripts of each installed package, or in [`Loaded`] their digests.
struct OfPackages {
    /// Fixed window, sliding counter and log.
    limits: Option<[String; 3]>,
    /// Check and increment of several counters.
    litellm: Option<String>,
}

/// The scripts.
pub struct Scripts {
    /// Names and versions of the packages.
    pub packages: Vec<String>,
    of: OfPackages,
}

/// The scripts in a server.
pub struct Loaded(OfPackages);

impl Scripts {
    /// Asks python3 for the packages, and notes which are missing.
    pub fn find(report: &mut Report) -> Scripts {
        let mut scripts = Scripts { packages: Vec::new(), of: OfPackages { limits: None, litellm: None } };
        scripts.of.limits = scripts.ask("limits", LIMITS, report);
        scripts.of.litellm = scripts.ask("litellm", LITELLM, report).map(|[script]| script);
        scripts
    }

    /// Asks for the scripts of a package, and reports it if they are missing.
    fn ask<const N: usize>(
        &mut self,
        package: &str,
        question: &str,
        report: &mut Report,
    ) -> Option<[String; N]> {
        let (version, scripts) = ask(question)
            .inspect_err(|error| report.skip(&format!("Lua scripts of the package `{package}`"), error))
            .ok()?;
        self.packages.push(format!("`{package}` {version}"));
        Some(scripts)
    }

    /// Loads them into a server.
    pub fn load(&self, connection: &mut Connection) -> Result<Loaded> {
        let mut digest = |script: &String| -> Result<String> {
            Ok(redis::cmd("SCRIPT").arg("LOAD").arg(script).query(connection)?)
        };
        let OfPackages { limits, litellm } = &self.of;
        let limits = match limits {
            Some([fixed, sliding, log]) => Some([digest(fixed)?, digest(sliding)?, digest(log)?]),
            None => None,
        };
        Ok(Loaded(OfPackages { limits, litellm: litellm.as_ref().map(digest).transpose()? }))
    }
}

/// The version of a package, and its scripts.
fn ask<const N: usize>(question: &str) -> Result<(String, [String; N])> {
    let output = Command::new("python3").args(["-c", question]).output().context("no python3")?;
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
    /// The fixed window, sliding counter and log of `limits` with one tier, with keys and arguments as the package
    /// sends them.
    pub fn limits(&self) -> Vec<Workload> {
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
        let digest = self.0.litellm.as_ref()?;
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
