//! How much passes in any span of a window's length, under traffic that comes in bursts.

use anyhow::Result;
use plotters::prelude::*;
use redis::Connection;

use super::traffic::{self, LIMITERS};
use super::{Canvas, INK, text};

const LIMIT: u64 = 100;
const WINDOW_MS: u64 = 10_000;
const END_MS: u64 = 120_000;

/// Bursts of a random length at random times, together some three times the limit.
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
    let times = times();
    let title = "Requests allowed within the last 10 s, under bursts; the limit is 100";
    canvas.draw(&Text::new(title, (20, 12), text(17)))?;
    let mut chart = ChartBuilder::on(canvas)
        .margin(8)
        .margin_top(44)
        .margin_right(24)
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d(0f64..END_MS as f64 / 1_000.0, 0f64..250f64)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.3))
        .axis_style(INK)
        .label_style(text(13))
        .x_label_formatter(&|s| format!("{s} s"))
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    let limit = [(0.0, LIMIT as f64), (END_MS as f64 / 1_000.0, LIMIT as f64)];
    chart.draw_series(LineSeries::new(limit, INK.stroke_width(2)))?;
    for limiter in &LIMITERS {
        let requests = traffic::send(connection, limiter.command, LIMIT, WINDOW_MS, &times)?;
        let most = traffic::most_within(&requests, WINDOW_MS);
        let within = |at_ms| traffic::allowed_within(&requests, WINDOW_MS, at_ms) as f64;
        let points = (0..=END_MS).step_by(100).map(|at_ms| (at_ms as f64 / 1_000.0, within(at_ms)));
        let color = limiter.color;
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(format!("{}: up to {most}", limiter.command))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperRight).label_font(text(14)).draw()?;
    Ok(())
}
