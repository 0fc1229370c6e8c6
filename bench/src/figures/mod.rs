//! `make figures`: pictures of what the limiters do, drawn from the replies of a real server.
//!
//! Backgrounds are left out and every colour is of middle brightness, so that a picture reads well
//! on a light page and on a dark one.

mod accuracy;
mod bytes;
mod edge;
mod instructions;
mod traffic;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

use crate::server::{Server, Setup};

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const INK: RGBColor = RGBColor(125, 133, 144);
const FIXED: RGBColor = RGBColor(217, 119, 6);
const SLIDING: RGBColor = RGBColor(8, 145, 178);
const LOG: RGBColor = RGBColor(34, 160, 80);
const OTHER: RGBColor = RGBColor(150, 110, 200);

/// Draws all pictures into `folder`.
///
/// That of instructions shows the table of `make bench` in the Markdown file `benchmark`.
pub fn draw(setup: &Setup, folder: &Path, benchmark: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let server = Server::start(setup, setup.first_server(), &[])?;
    let mut connection = server.connect()?;
    picture(folder, "edge", (900, 560), |canvas| edge::draw(canvas, &mut connection))?;
    picture(folder, "accuracy", (900, 420), |canvas| accuracy::draw(canvas, &mut connection))?;
    picture(folder, "bytes", (900, 420), |canvas| bytes::draw(canvas, &mut connection))?;
    let table = fs::read_to_string(benchmark).with_context(|| format!("no {}", benchmark.display()))?;
    picture(folder, "instructions", (900, 420), |canvas| instructions::draw(canvas, &table))
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

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}
