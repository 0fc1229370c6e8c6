//! The demo in a terminal of its own: what it shows, and that it leaves nothing behind.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use harness::{Launch, Server};
use portable_pty::{Child, CommandBuilder, PtyPair, PtySize, native_pty_system};
use redis_rl_demo::state::{COMMANDS, LIMIT, Tour, WINDOW_MS};
use redis_rl_demo::traffic::Traffic;
use tempfile::TempDir;

/// How long a condition may take to come true before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn module() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredis_rl.so");
    let module = env::var_os("MODULE").map_or(built, PathBuf::from);
    assert!(module.exists(), "{module:?} is missing: `make build` makes it");
    module
}

fn server() -> Server {
    Launch::server().and_then(|launch| launch.module(&module()).start()).expect("a server")
}

/// The demo in a terminal of 100 columns. Dropping it ends it as a closed terminal does.
struct Demo {
    child: Box<dyn Child + Send + Sync>,
    terminal: PtyPair,
    keys: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Its folder for temporary files, which nobody else uses.
    folder: TempDir,
    settings_before: String,
}

impl Demo {
    fn start(redis_url: Option<&str>) -> Demo {
        let terminal = native_pty_system()
            .openpty(PtySize { rows: 24, cols: 100, ..PtySize::default() })
            .expect("a pseudo-terminal");
        let settings_before = settings(&terminal);
        let folder = TempDir::new().expect("a temporary folder");
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_redis-rl-demo"));
        command.env("MODULE", module());
        command.env("TMPDIR", folder.path());
        command.env("TERM", "xterm-256color");
        match redis_url {
            Some(url) => command.env("REDIS_URL", url),
            None => command.env_remove("REDIS_URL"),
        }
        let child = terminal.slave.spawn_command(command).expect("the demo");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 100, 0)));
        let mut output = terminal.master.try_clone_reader().expect("its output");
        let shown = screen.clone();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                shown.lock().expect("the screen").process(&bytes[..length]);
            }
        });
        let keys = terminal.master.take_writer().expect("its input");
        Demo { child, terminal, keys, screen, folder, settings_before }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the demo reads");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.process_id().expect("its process");
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
        assert!(sent.expect("sh runs").success());
    }

    fn screen(&self) -> String {
        self.screen.lock().expect("the screen").screen().contents()
    }

    fn wait_for_text(&self, text: &str) {
        wait_for(|| self.screen().contains(text), || format!("{text:?} on\n{}", self.screen()));
    }

    /// The port of its own server, as it shows it.
    fn port(&self) -> u16 {
        self.wait_for_text("redis-cli -p ");
        let screen = self.screen();
        let port = screen.split("redis-cli -p ").nth(1).and_then(|rest| rest.split_whitespace().next());
        port.and_then(|port| port.parse().ok()).expect("a port")
    }

    /// Waits for its end; whether it ends without an error.
    fn end(&mut self) -> bool {
        let mut status = None;
        let ended = || {
            status = self.child.try_wait().expect("its status");
            status.is_some()
        };
        wait_for(ended, || "its end".to_owned());
        status.is_some_and(|status| status.success())
    }

    /// Waits for its end, and sees that the terminal is as it was and nothing is left.
    fn ends_cleanly(&mut self) {
        assert!(self.end(), "{}", self.screen());
        let restored = || {
            let parser = self.screen.lock().expect("the screen");
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        };
        wait_for(restored, || format!("the terminal as it was, not\n{}", self.screen()));
        assert_eq!(settings(&self.terminal), self.settings_before);
        let left: Vec<_> = fs::read_dir(self.folder.path()).expect("its folder").collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(processes_in(self.folder.path()), Vec::<PathBuf>::new());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("HUP");
        }
    }
}

/// The terminal's settings: modes, control characters, speeds.
fn settings(terminal: &PtyPair) -> String {
    format!("{:?}", terminal.master.get_termios().expect("its settings"))
}

/// The processes that work in `folder` or below it, as the demo's server does.
fn processes_in(folder: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").expect("/proc").filter_map(Result::ok).map(|entry| entry.path());
    let works_there =
        |process: &PathBuf| fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
    processes.filter(works_there).collect()
}

fn wait_for(mut condition: impl FnMut() -> bool, what: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {}", what());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn q_ends_it_its_server_and_its_folder() {
    let mut demo = Demo::start(None);
    demo.wait_for_text("allowed 1");
    let port = demo.port();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(!processes_in(demo.folder.path()).is_empty());
    demo.press("q");
    demo.ends_cleanly();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn sigterm_sigint_sighup_and_control_c_end_it_as_cleanly() {
    for signal in ["TERM", "INT", "HUP", ""] {
        let mut demo = Demo::start(None);
        demo.wait_for_text("allowed 1");
        if signal.is_empty() {
            demo.press("\x03")
        } else {
            demo.signal(signal)
        }
        demo.ends_cleanly();
    }
}

#[test]
fn keys_change_the_rate_and_plan_a_burst() {
    let mut demo = Demo::start(None);
    demo.wait_for_text(" 6 requests a second");
    demo.press("\x1b[A\x1b[A");
    demo.wait_for_text(" 8 requests a second");
    demo.press("\x1b[B");
    demo.wait_for_text(" 7 requests a second");
    demo.press("b");
    demo.wait_for_text("a burst in ");
    demo.press("q");
    demo.ends_cleanly();
}

#[test]
fn a_server_that_redis_url_names_keeps_running_and_keeps_no_key_of_the_demo() {
    let server = server();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let mut connection =
        redis::Client::open(&*url).and_then(|client| client.get_connection()).expect("a connection");
    let mut keys = || redis::cmd("DBSIZE").query::<u64>(&mut connection).expect("DBSIZE");
    let mut demo = Demo::start(Some(&url));
    wait_for(|| keys() == COMMANDS.len() as u64, || demo.screen());
    demo.press("q");
    demo.ends_cleanly();
    assert_eq!(keys(), 0);
}

#[test]
fn a_server_that_is_not_there_is_an_error_on_the_terminal_as_it_was() {
    let mut demo = Demo::start(Some("redis://127.0.0.1:1"));
    demo.wait_for_text("demo: ");
    assert!(!demo.end());
    assert_eq!(settings(&demo.terminal), demo.settings_before);
}

#[test]
fn a_burst_at_the_edge_passes_fixed_alone() {
    let server = server();
    let mut traffic =
        Traffic::to(&format!("redis://127.0.0.1:{}", server.port()), "test").expect("a connection");
    let edge = 1_000 * WINDOW_MS;
    let mut tour = Tour::new(edge - WINDOW_MS - 1);
    tour.burst();
    traffic.send(&mut tour, edge - 1).expect("nothing is due");
    traffic.send(&mut tour, edge + 1).expect("replies");
    assert_eq!(tour.lanes.each_ref().map(|lane| lane.most), [2 * LIMIT, LIMIT, LIMIT, LIMIT]);
    assert_eq!(tour.lanes.each_ref().map(|lane| lane.refused), [0, LIMIT, LIMIT, LIMIT]);
}
