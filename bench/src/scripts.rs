//! The Lua scripts that the PyPI package `limits` runs, read from wherever it is installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use redis::Connection;

use crate::workload::{Answer, KEY, Workload};

/// The scripts with which `limits` takes from a limit.
pub struct Scripts {
    /// The version of the package.
    pub version: String,
    fixed: String,
    sliding: String,
    log: String,
}

/// Requests to them.
pub struct ScriptWorkloads {
    fixed: String,
    sliding: String,
    log: String,
}

impl Scripts {
    /// Asks python3 for the package.
    pub fn find() -> Result<Scripts> {
        let question =
            "import limits, os; print(os.path.dirname(limits.__file__), limits.__version__, sep='\\n')";
        let output = Command::new("python3").args(["-c", question]).output().context("no python3")?;
        ensure!(output.status.success(), "the Python package `limits` is not installed");
        let answer = String::from_utf8(output.stdout)?;
        let (folder, version) =
            answer.trim_end().split_once('\n').context("an unexpected answer of python3")?;
        let folder = PathBuf::from(folder).join("resources/redis/lua_scripts");
        let script =
            |name| fs::read_to_string(folder.join(name)).with_context(|| format!("`limits` has no {name}"));
        Ok(Scripts {
            version: version.into(),
            fixed: script("incr_expire.lua")?,
            sliding: script("acquire_sliding_window.lua")?,
            log: script("acquire_moving_window.lua")?,
        })
    }

    /// Loads them into a server.
    pub fn load(&self, connection: &mut Connection) -> Result<ScriptWorkloads> {
        let mut digest = |script: &str| redis::cmd("SCRIPT").arg("LOAD").arg(script).query(connection);
        Ok(ScriptWorkloads {
            fixed: digest(&self.fixed)?,
            sliding: digest(&self.sliding)?,
            log: digest(&self.log)?,
        })
    }
}

impl ScriptWorkloads {
    /// The fixed window, the sliding counter and the log, with the limit of one tier: keys and
    /// arguments are those that the package sends.
    pub fn all(&self) -> [Workload; 3] {
        let ScriptWorkloads { fixed, sliding, log } = self;
        let previous = format!("LIMITS:{{{KEY}}}/-1");
        let last_window = format!("SET {previous} 1000 PX 60000");
        // It sends the time too, in seconds; that it stands still spares the script nothing.
        let time = "1700000000.123456";
        [
            Workload::new(
                "Lua fixed window of `limits`",
                format!("EVALSHA {fixed} 1 LIMITS:{KEY} 60 1"),
                Answer::Any,
            ),
            Workload::new(
                "Lua sliding counter of `limits`",
                format!("EVALSHA {sliding} 2 {previous} LIMITS:{{{KEY}}} 1000000 60 1"),
                Answer::True,
            )
            .after(move |_| vec![last_window.clone()]),
            Workload::new(
                "Lua log on a list of `limits`",
                format!("EVALSHA {log} 1 LIMITS:{KEY} {time} 1000000 60 1"),
                Answer::True,
            ),
        ]
    }
}
