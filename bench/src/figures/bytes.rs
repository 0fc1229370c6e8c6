//! What a remembered request takes in memory.

use anyhow::Result;
use plotters::prelude::*;
use redis::Connection;

use super::{Canvas, FIXED, INK, LOG, OTHER, text};
use crate::memory::{Keeping, bytes_a_unit};

const HOUR_MS: u64 = 60 * 60 * 1_000;
const COUNTS: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];
const KEEPINGS: [(Keeping, &str, RGBColor); 3] = [
    (Keeping::SortedSet, "sorted set", FIXED),
    (Keeping::List, "list", OTHER),
    (Keeping::Log, "RL.LOG", LOG),
];

pub fn draw(canvas: &Canvas, connection: &mut Connection) -> Result<()> {
    let title = "Bytes for each remembered request, by how many there are in an hour (MEMORY USAGE)";
    canvas.draw(&Text::new(title, (20, 12), text(17)))?;
    let mut chart = ChartBuilder::on(canvas)
        .margin(8)
        .margin_top(44)
        .margin_right(40)
        .x_label_area_size(28)
        .y_label_area_size(44)
        .build_cartesian_2d((10f64..100_000f64).log_scale(), (1f64..200f64).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.3))
        .axis_style(INK)
        .label_style(text(13))
        .x_label_formatter(&|n| format!("{n}"))
        .y_label_formatter(&|n| format!("{n}"))
        .draw()?;
    for (keeping, name, color) in KEEPINGS {
        let mut points = Vec::new();
        for count in COUNTS {
            points.push((count as f64, bytes_a_unit(connection, keeping, count, HOUR_MS, 5)?));
        }
        let few = points[0].1;
        let many = points[points.len() - 1].1;
        chart
            .draw_series(LineSeries::new(points.clone(), color.stroke_width(2)))?
            .label(format!("{name}: {few:.1} to {many:.1}"))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], color.filled()));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(560, 90))
        .label_font(text(14))
        .draw()?;
    Ok(())
}
