//! Two bursts, one on each side of a window's edge.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use redis::Connection;

use super::traffic::{self, Request};
use super::{Canvas, INK, text, through_each};

const LIMIT: u64 = 10;
const WINDOW_MS: u64 = 10_000;
const END_MS: u64 = 40_000;
/// The width of a bar, in milliseconds.
const COLUMN_MS: u64 = 500;

/// The duration of the bursts, half of it on each side of the edge.
const BURSTS_MS: u64 = 2_000;
const EDGE_MS: u64 = 20_000;
const BURSTS_START_MS: u64 = EDGE_MS - BURSTS_MS / 2;

/// A request every two seconds, except around two bursts of twelve.
fn times() -> Vec<u64> {
    let steady = (0..END_MS).step_by(2_000).filter(|at_ms| !(9_000..22_000).contains(at_ms));
    let burst = |start: u64| (0..12u64).map(move |i| start + i * 80);
    let mut times: Vec<u64> = steady.chain(burst(BURSTS_START_MS)).chain(burst(EDGE_MS)).collect();
    times.sort_unstable();
    times
}

pub fn draw(canvas: &Canvas, connection: &mut Connection) -> Result<()> {
    for (left, name, fill) in [(640, "allowed", 1.0), (740, "refused", PALE)] {
        for style in [INK.mix(fill).filled(), INK.stroke_width(1)] {
            canvas.draw(&Rectangle::new([(left, 11), (left + 14, 25)], style))?;
        }
        canvas.draw(&Text::new(name, (left + 22, 12), text(15)))?;
    }
    let title = "The same traffic, a limit of 10 in 10 s: requests in each half second";
    through_each(canvas, connection, (title, LIMIT, WINDOW_MS), &times(), draw_columns)
}

/// The opacity of refused requests, which also have an outline.
const PALE: f64 = 0.2;

fn draw_columns(strip: &Canvas, requests: &[Request], color: RGBColor) -> Result<()> {
    let mut chart = ChartBuilder::on(strip)
        .margin(8)
        .margin_top(26)
        .margin_right(24)
        .x_label_area_size(24)
        .y_label_area_size(36)
        .build_cartesian_2d(0f64..END_MS as f64 / 1_000.0, 0f64..11f64)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .x_labels(5)
        .y_labels(3)
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.5))
        .axis_style(INK)
        .label_style(text(13))
        .x_label_formatter(&|s| format!("{s} s"))
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    for start_ms in (0..END_MS).step_by(COLUMN_MS as usize) {
        let here = |r: &&Request| (start_ms..start_ms + COLUMN_MS).contains(&r.at_ms);
        let all = requests.iter().filter(here).count() as f64;
        let allowed = requests.iter().filter(here).filter(|r| r.allowed).count() as f64;
        let (left, right) =
            (start_ms as f64 / 1_000.0 + 0.06, (start_ms + COLUMN_MS) as f64 / 1_000.0 - 0.06);
        let (granted, refused) = ([(left, 0.0), (right, allowed)], [(left, allowed), (right, all)]);
        for (area, style) in
            [(granted, color.filled()), (refused, color.mix(PALE).filled()), (refused, color.stroke_width(1))]
        {
            if area[0].1 < area[1].1 {
                chart.draw_series([Rectangle::new(area, style)])?;
            }
        }
    }
    let allowed = traffic::allowed_within(requests, BURSTS_MS, BURSTS_START_MS + BURSTS_MS - 1);
    let seconds = |ms| ms as f64 / 1_000.0;
    let (left, right) = (seconds(BURSTS_START_MS), seconds(BURSTS_START_MS + BURSTS_MS));
    let bracket = [(left, 7.4), (left, 7.8), (right, 7.8), (right, 7.4)];
    chart.draw_series([PathElement::new(bracket, color.stroke_width(1))])?;
    let label = format!("{allowed} in {} s", BURSTS_MS / 1_000);
    let style = text(14).color(&color).pos(Pos::new(HPos::Left, VPos::Center));
    chart.draw_series([Text::new(label, (right + 0.4, 7.6), style)])?;
    Ok(())
}
