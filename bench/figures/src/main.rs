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

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}
