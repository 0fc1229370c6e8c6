//! How much is allowed in any span of a window's length, under bursty traffic.

use anyhow::Result;
use plotters::prelude::*;
use redis::Connection;

use super::traffic::{self, Request};
use super::{Canvas, INK, text, through_each};

const LIMIT: u64 = 100;
const WINDOW_MS: u64 = 10_000;
const END_MS: u64 = 120_000;

/// Bursts of random length at random times, about three times the limit in total.
fn times() -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut times = Vec::new();
    let mut at_ms = 0;
    while at_ms < END_MS {
        let burst_ms = random.u64(200..4_000);
        times.extend((0..burst_ms / 9).map(|_| at_ms + random.u64(..burst_ms)));
        at_ms += burst_ms + random.u64(500..6_000);
    }
    times.retain(|time| *time < END_MS);
    times.sort_unstable();
    times
}

pub fn draw(canvas: &Canvas, connection: &mut Connection) -> Result<()> {
    let title =
        "Requests allowed within the last 10 s, under the same bursts; the line is the limit, 100 in 10 s";
    through_each(canvas, connection, (title, LIMIT, WINDOW_MS), &times(), draw_panel)
}

fn draw_panel(panel: &Canvas, requests: &[Request], color: RGBColor) -> Result<()> {
    const END_S: f64 = END_MS as f64 / 1_000.0;
    let mut chart = ChartBuilder::on(panel)
        .margin(8)
        .margin_top(26)
        .margin_right(24)
        .x_label_area_size(24)
        .y_label_area_size(40)
        .build_cartesian_2d(0.0..END_S, 0f64..200f64)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .y_labels(3)
        .axis_style(INK)
        .label_style(text(13))
        .x_label_formatter(&|s| format!("{s} s"))
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    let limit = [(0.0, LIMIT as f64), (END_S, LIMIT as f64)];
    chart.draw_series(LineSeries::new(limit, INK.stroke_width(2)))?;
    let within = |at_ms| traffic::allowed_within(requests, WINDOW_MS, at_ms) as f64;
    let points = (0..=END_MS).step_by(100).map(|at_ms| (at_ms as f64 / 1_000.0, within(at_ms)));
    chart.draw_series(AreaSeries::new(points, 0.0, color.mix(0.35)).border_style(color.stroke_width(2)))?;
    Ok(())
}
