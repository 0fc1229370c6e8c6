//! `make figures`: figures of what the limiters do, drawn from the replies of a real server and the tables of
//! `make bench`.
//!
//! Backgrounds are transparent. Colors are as bright as a contrast of 4.5 to white allows, so that text is readable on
//! dark pages too, with 4.1. A color means the same in every figure.

mod accuracy;
mod bytes;
mod edge;
mod instructions;
mod tables;
mod traffic;

use std::path::Path;
use std::{env, fs};

use anyhow::{Context, Result, bail};
use harness::Server;
use plotters::prelude::*;

type Canvas<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const INK: RGBColor = RGBColor(111, 118, 128);
const FIXED: RGBColor = RGBColor(177, 97, 5);
const SLIDING: RGBColor = RGBColor(7, 128, 158);
const LOG: RGBColor = RGBColor(29, 135, 68);
const BUCKET: RGBColor = RGBColor(176, 78, 176);
const ALL: RGBColor = RGBColor(60, 115, 211);
/// Lua scripts, lists and other alternatives to redis-rl.
const OTHER: RGBColor = RGBColor(137, 101, 183);
const SORTED_SET: RGBColor = RGBColor(201, 70, 115);

fn main() -> Result<()> {
    match &env::args().skip(1).collect::<Vec<_>>()[..] {
        [folder, benchmark] => draw(Path::new(folder), Path::new(benchmark)),
        _ => bail!("usage: redis-rl-figures FOLDER BENCHMARKS"),
    }
}

/// Draws all figures into `folder`.
///
/// Those of instructions and bytes show tables of `make bench` in the Markdown file `benchmark`. If a table is
/// missing, its figure is left unchanged.
fn draw(folder: &Path, benchmark: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let server = Server::start();
    let mut connection = server.connect();
    picture(folder, "edge", (900, 760), |canvas| edge::draw(canvas, &mut connection))?;
    picture(folder, "accuracy", (900, 735), |canvas| accuracy::draw(canvas, &mut connection))?;

    let tables = fs::read_to_string(benchmark).with_context(|| format!("no {}", benchmark.display()))?;
    match bytes::Series::read(&tables) {
        Some(series) => picture(folder, "bytes", (900, 420), |canvas| bytes::draw(canvas, &series))?,
        None => eprintln!("bytes.svg stays: {} has no table of `units in a key`", benchmark.display()),
    }
    match instructions::Bars::read(&tables) {
        Some(bars) => picture(folder, "instructions", (900, bars.height()), |canvas| bars.draw(canvas))?,
        None => eprintln!("instructions.svg stays: {} has no table of instructions", benchmark.display()),
    }
    Ok(())
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
