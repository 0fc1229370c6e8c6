//! Draws the recording of the demo in the README, frame by frame, as SVG files: `make recording` makes a GIF of them.
//!
//! The traffic is made up, with times of its own; a server decides it. So each run draws the same frames.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use harness::Launch;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use redis_rl_demo::state::{Tour, WINDOW_MS};
use redis_rl_demo::traffic::Traffic;
use redis_rl_demo::view;

/// The terminal, in characters.
const COLUMNS: u16 = 90;
const ROWS: u16 = 18;
/// A character, in pixels: DejaVu Sans Mono at this size.
const SIZE: f64 = 16.0;
const WIDTH: f64 = SIZE * 0.602;
const HEIGHT: f64 = SIZE * 1.164;
/// Above and below the terminal.
const MARGIN: f64 = 12.0;

const BACKGROUND: &str = "#0d1117";
const TEXT: &str = "#e6edf3";
const DIM: &str = "#7d8590";
const GREEN: &str = "#3fb950";
const RED: &str = "#f85149";

const FRAME_MS: u64 = 100;
/// The edge of a window at which the burst comes.
const EDGE: u64 = 1_000 * WINDOW_MS;
/// Light traffic, then a pause, the burst, and time to look at it.
const START: u64 = EDGE - 1_600;
const PAUSE: u64 = EDGE - 500;
const END: u64 = EDGE + 4_400;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let (Some(module), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: recording MODULE FOLDER".into());
    };
    fs::create_dir_all(&folder)?;
    let server = Launch::server()?.module(&module).start()?;
    let mut traffic = Traffic::to(&format!("redis://127.0.0.1:{}", server.port()), "recording")?;
    let mut terminal = Terminal::new(TestBackend::new(COLUMNS, ROWS))?;
    let mut tour = Tour::new(START);
    for (number, now) in (START..END).step_by(FRAME_MS as usize).enumerate() {
        if (PAUSE..EDGE).contains(&now) {
            tour.burst_at = Some(EDGE);
        }
        traffic.send(&mut tour, now)?;
        if now >= EDGE {
            tour.rate = 0;
        }
        terminal.draw(|frame| view::draw(frame, &tour, "redis-cli -p 6379"))?;
        let caption = if now < EDGE {
            "Next: 20 requests right before the edge of a window, and 20 right after"
        } else {
            "Within 5 s RL.FIXED let 40 through, RL.BUCKET 20 and what refilled, the others 20"
        };
        fs::write(folder.join(format!("frame-{number:03}.svg")), svg(terminal.backend().buffer(), caption)?)?;
    }
    Ok(())
}

/// A picture of the terminal, with a caption below it.
fn svg(buffer: &Buffer, caption: &str) -> Result<String, std::fmt::Error> {
    let (width, height) =
        (f64::from(COLUMNS) * WIDTH + 2.0 * MARGIN, f64::from(ROWS + 2) * HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0}' height='{height:.0}' \
         font-family='DejaVu Sans Mono' font-size='{SIZE}'><rect width='100%' height='100%' fill='{BACKGROUND}'/>"
    );
    for (index, cell) in buffer.content.iter().enumerate().filter(|(_, cell)| cell.symbol() != " ") {
        let (column, row) = buffer.pos_of(index);
        text(&mut svg, f64::from(column), f64::from(row), cell)?;
    }
    let top = MARGIN + f64::from(ROWS + 1) * HEIGHT + SIZE / 2.0;
    write!(
        svg,
        "<text x='{:.1}' y='{top:.1}' font-family='DejaVu Sans' fill='{TEXT}'>{caption}</text></svg>",
        MARGIN + WIDTH
    )?;
    Ok(svg)
}

fn text(svg: &mut String, column: f64, row: f64, cell: &Cell) -> std::fmt::Result {
    let color = match cell.fg {
        Color::Green => GREEN,
        Color::Red => RED,
        _ if cell.modifier.contains(Modifier::DIM) => DIM,
        _ => TEXT,
    };
    let weight = if cell.modifier.contains(Modifier::BOLD) { "bold" } else { "normal" };
    // The base line of the font, below the top of its line.
    let (x, y) = (MARGIN + column * WIDTH, MARGIN + row * HEIGHT + SIZE * 0.928);
    write!(svg, "<text x='{x:.2}' y='{y:.2}' fill='{color}' font-weight='{weight}'>{}</text>", cell.symbol())
}
