//! Shows the demo in a terminal until a key or a signal ends it.
//!
//! It starts a server of its own with the module in the file `MODULE`, unless `REDIS_URL` names
//! one that has loaded it. Leaves nothing behind, whether it ends by a key or by a signal.

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use harness::Launch;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use redis_rl_demo::state::Tour;
use redis_rl_demo::traffic::Traffic;
use redis_rl_demo::view;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The time from one frame to the next.
const FRAME: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    if !io::stdout().is_terminal() {
        return Err("this is a view for a terminal".into());
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, ended.clone())?;
    }
    // Ends with this function, after the terminal is itself again.
    let mut own = None;
    let (url, place) = match env::var("REDIS_URL") {
        Ok(url) => (url, "REDIS_URL".to_owned()),
        Err(_) => {
            let port = own.insert(Launch::server()?.module(&module()).start()?).port();
            (format!("redis://127.0.0.1:{port}"), format!("redis-cli -p {port}"))
        }
    };
    let mut traffic = Traffic::to(&url, &format!("rl-demo:{}", process::id()))?;
    // An error that is worth reading comes here, on the terminal as it was.
    traffic.send(&mut Tour::new(now_ms()), now_ms()).map_err(|error| match error.to_string() {
        text if text.contains("unknown command") => "the server has not loaded the module".to_owned(),
        text => text,
    })?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &mut traffic, &place, &ended);
    ratatui::restore();
    let reset = traffic.reset();
    shown?;
    Ok(reset?)
}

/// The file with the module: `MODULE`, or else what `make build` makes.
fn module() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/libredis_rl.so");
    env::var_os("MODULE").map_or(built, PathBuf::from)
}

/// Shows a tour until a key or a signal ends it.
fn show(
    terminal: &mut DefaultTerminal,
    traffic: &mut Traffic,
    place: &str,
    ended: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    let mut tour = Tour::new(now_ms());
    while !ended.load(Ordering::Relaxed) {
        traffic.send(&mut tour, now_ms())?;
        terminal.draw(|frame| view::draw(frame, &tour, place))?;
        let mut wait = FRAME;
        while event::poll(wait)? {
            wait = Duration::ZERO;
            let Event::Key(KeyEvent { code, modifiers, .. }) = event::read()? else { continue };
            match code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Up => tour.faster(),
                KeyCode::Down => tour.slower(),
                KeyCode::Char('b') => tour.burst(),
                KeyCode::Char('r') => {
                    traffic.reset()?;
                    tour.restart();
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64
}
