//! `make figures`: figures of what the limiters do, drawn from the replies of a real server.
//!
//! Backgrounds are transparent. Colors are as bright as a contrast of 4.5 to white allows, so that text is readable on
//! dark pages too, with 4.1. A color means the same in every figure.

mod accuracy;
mod edge;
mod traffic;

use std::env;
use std::path::Path;

use anyhow::{Result, bail};
use harness::Server;
use plotters::prelude::*;
use redis::Connection;

use traffic::{LIMITERS, Request};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const INK: RGBColor = RGBColor(111, 118, 128);
const FIXED: RGBColor = RGBColor(177, 97, 5);
const SLIDING: RGBColor = RGBColor(7, 128, 158);
const LOG: RGBColor = RGBColor(29, 135, 68);
const BUCKET: RGBColor = RGBColor(176, 78, 176);

fn main() -> Result<()> {
    let Some(folder) = env::args_os().nth(1) else { bail!("usage: redis-rl-figures FOLDER") };
    let server = Server::start();
    let mut connection = server.connect();
    picture(folder.as_ref(), "edge", (900, 760), |canvas| edge::draw(canvas, &mut connection))?;
    picture(folder.as_ref(), "accuracy", (900, 735), |canvas| accuracy::draw(canvas, &mut connection))
}

fn picture(
    folder: &Path,
    name: &str,
    size: (u32, u32),
    draw: impl FnOnce(&Canvas) -> Result<()>,
) -> Result<()> {
    let path = folder.join(name).with_extension("svg");
    let canvas = SVGBackend::new(&path, size).into_drawing_area();
    draw(&canvas)?;
    canvas.present()?;
    println!("{}", path.display());
    Ok(())
}

/// A title, and below it the same traffic through each limiter, drawn by `draw_in` on a panel of its own.
fn through_each(
    canvas: &Canvas,
    connection: &mut Connection,
    (title, limit, window_ms): (&str, u64, u64),
    times_ms: &[u64],
    draw_in: impl Fn(&Canvas, &[Request], RGBColor) -> Result<()>,
) -> Result<()> {
    canvas.draw(&Text::new(title, (20, 12), text(17)))?;
    let (_, panels) = canvas.split_vertically(40);
    for (limiter, panel) in LIMITERS.iter().zip(panels.split_evenly((LIMITERS.len(), 1))) {
        let requests = traffic::send(connection, limiter.command, limit, window_ms, times_ms)?;
        let most = traffic::most_within(&requests, window_ms);
        let caption = format!("{}: of this traffic, up to {most} within 10 s", limiter.command);
        panel.draw(&Text::new(caption, (56, 4), text(15).color(&limiter.color)))?;
        draw_in(&panel, &requests, limiter.color)?;
    }
    Ok(())
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}
