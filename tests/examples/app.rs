//! An example as a child process, and its answers over HTTP.

use std::collections::BTreeSet;
use std::env;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use harness::{PATIENCE, Process, Server, wait_for};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug)]
pub enum Language {
    Python,
    Node,
    Rust,
}

impl Language {
    /// The command that runs the example, if everything it needs is installed.
    fn command(self) -> Option<Command> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let installed = match self {
            // Beside the folder of this test.
            Language::Rust => env::current_exe().ok()?.parent()?.with_file_name("redis-rl-example"),
            _ => root.join("target/examples").join(format!("{self:?}").to_lowercase()),
        };
        if !installed.exists() {
            return None;
        }
        Some(match self {
            Language::Python => {
                let mut python = Command::new("python3");
                python.arg(root.join("examples/python/app.py")).env("PYTHONPATH", installed);
                python
            }
            Language::Node => {
                let mut node = Command::new("node");
                // The file is a link, so that it finds the packages beside it.
                node.args(["--preserve-symlinks", "--preserve-symlinks-main"]).arg(installed.join("app.js"));
                node
            }
            Language::Rust => Command::new(installed),
        })
    }

    /// Whether the example can run here; see [`is_installed`].
    pub fn is_there(self) -> bool {
        is_installed(self.command().is_some(), &format!("the example in {self:?}"))
    }
}

/// Returns whether it `is`; if not, prints that once. In CI it must be.
pub fn is_installed(is: bool, what: &str) -> bool {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if !is {
        let skipped = format!("skipped: {what} is not installed: see make test-examples");
        assert!(env::var_os("CI").is_none(), "{skipped}");
        if SAID.lock().expect("no panic").insert(skipped.clone()) {
            // Not by a macro: the test harness captures its output.
            let _ = writeln!(std::io::stderr(), "{skipped}");
        }
    }
    is
}

/// A running example. Dropping it stops it.
pub struct App {
    process: Process,
    url: String,
    _folder: TempDir,
}

impl App {
    /// Runs the example on a server, with these environment variables.
    pub fn start(language: Language, server: &Server, settings: &[(&str, &str)]) -> App {
        let (mut process, folder) = run(language, server.port(), settings);
        let mut url = None;
        wait_for("the example to listen", || {
            let is_running = process.is_running();
            url = url_in(&process.log());
            assert!(url.is_some() || is_running, "{language:?}: {}", process.log());
            url.is_some()
        });
        App { url: url.expect("it listens"), process, _folder: folder }
    }

    /// Asks the example to end, and waits until it has.
    pub fn stop(mut self) {
        self.process.terminate();
        wait_for("the example to end", || !self.process.is_running());
    }

    /// The answer to a GET.
    pub fn get(&self, path: &str) -> Answer {
        self.answer(path, &[], None)
    }

    /// The answer to a GET of somebody who has logged in.
    pub fn get_as(&self, path: &str, account: &str) -> Answer {
        self.answer(path, &[("X-Account", account)], None)
    }

    /// The answer to a GET that came through proxies.
    pub fn get_forwarded(&self, path: &str, forwarded_for: &str) -> Answer {
        self.answer(path, &[("X-Forwarded-For", forwarded_for)], None)
    }

    /// The answer to a POST of a text.
    pub fn post(&self, path: &str, body: &str) -> Answer {
        self.answer(path, &[], Some(body))
    }

    fn answer(&self, path: &str, fields: &[(&str, &str)], body: Option<&str>) -> Answer {
        Answer::to(&format!("{}{path}", self.url), fields, body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.process.log()))
    }
}

/// Starts the example. The folder is for its log.
fn run(language: Language, redis_port: u16, settings: &[(&str, &str)]) -> (Process, TempDir) {
    let folder = TempDir::new().expect("a temporary folder");
    let mut command = language.command().expect("the example is there");
    command
        .env("PORT", "0")
        .env("REDIS_URL", format!("redis://127.0.0.1:{redis_port}"))
        // Long enough for a busy machine. A port without a listener refuses at once anyway.
        .env("REDIS_TIMEOUT_MS", PATIENCE.as_millis().to_string())
        .envs(settings.iter().copied());
    let process = Process::spawn(&mut command, folder.path().join("log"));
    (process.unwrap_or_else(|error| panic!("{error}")), folder)
}

/// The address that an example prints when it listens.
fn url_in(log: &str) -> Option<String> {
    let url = &log[log.find("http://127.0.0.1:")?..];
    // Only a complete word, since more output may follow.
    Some(url[..url.find(char::is_whitespace)?].to_owned())
}

/// The parts of an answer that the tests check.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub policy: Option<String>,
    pub limit: Option<String>,
    pub retry_after: Option<i64>,
    pub content_type: String,
    pub body: String,
}

impl Answer {
    /// The answer to a GET, or to a POST if there is a body.
    pub fn to(url: &str, fields: &[(&str, &str)], body: Option<&str>) -> Result<Answer, ureq::Error> {
        let config = ureq::Agent::config_builder();
        let config = config.http_status_as_error(false).timeout_global(Some(PATIENCE)).proxy(None).build();
        let agent: ureq::Agent = config.into();
        let mut response = match body {
            None => fields
                .iter()
                .fold(agent.get(url), |request, (name, value)| request.header(*name, *value))
                .call(),
            Some(body) => agent.post(url).send(body),
        }?;
        let field = |name| {
            let value = response.headers().get(name)?;
            Some(value.to_str().expect("a field in ASCII").to_owned())
        };
        Ok(Answer {
            status: response.status().as_u16(),
            policy: field("RateLimit-Policy"),
            limit: field("RateLimit"),
            retry_after: field("Retry-After").map(|seconds| seconds.parse().expect("whole seconds")),
            content_type: field("Content-Type").unwrap_or_default(),
            body: response.body_mut().read_to_string().expect("a body"),
        })
    }
}
