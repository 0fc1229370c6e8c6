//! The memory of a key by its number of units, as measured by `make bench`.

use anyhow::Result;
use plotters::prelude::*;

use super::{Canvas, INK, LOG, OTHER, SORTED_SET, tables, text};

/// The first column of the table.
const UNITS: &str = "units in a key";

/// Prefixes of the other columns' names.
const COLUMNS: [(&str, RGBColor); 3] = [("sorted set", SORTED_SET), ("list", OTHER), ("RL.LOG", LOG)];

/// A named line: bytes by units.
pub struct Series {
    name: &'static str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// The columns of the table.
    pub fn read(text: &str) -> Option<Vec<Series>> {
        let table = tables::find(text, |table| table[0][0] == UNITS)?;
        let (names, rows) = table.split_first()?;
        let series = |(name, color): (&'static str, RGBColor)| {
            let column = names.iter().position(|column| column.starts_with(name))?;
            let point =
                |row: &Vec<String>| Some((tables::number(&row[0])?, tables::number(row.get(column)?)?));
            Some(Series { name, color, points: rows.iter().filter_map(point).collect() })
        };
        COLUMNS.into_iter().map(series).collect()
    }
}

pub fn draw(canvas: &Canvas, series: &[Series]) -> Result<()> {
    let title =
        "Bytes of a key on Redis 7.0, by the units that it remembers: requests at random times of a minute";
    canvas.draw(&Text::new(title, (20, 12), text(17)))?;
    let points = || series.iter().flat_map(|series| &series.points);
    let most = |figures: &mut dyn Iterator<Item = f64>| figures.fold(1.0, f64::max);
    let (units, bytes) = (most(&mut points().map(|point| point.0)), most(&mut points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(canvas)
        .margin(8)
        .margin_top(44)
        // Space for the names of the lines.
        .margin_right(110)
        .x_label_area_size(46)
        .y_label_area_size(64)
        .build_cartesian_2d((1f64..units).log_scale(), (100f64..bytes * 1.2).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK.mix(0.3))
        .axis_style(INK)
        .axis_desc_style(text(14))
        .label_style(text(13))
        .x_desc("units in a key")
        .y_desc("bytes a key")
        .x_label_formatter(&|units| format!("{units}"))
        .y_label_formatter(&one_two_five)
        .draw()?;
    for Series { name, color, points } in series {
        chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, color.filled())))?;
        let name =
            |point: &(f64, f64)| EmptyElement::at(*point) + Text::new(*name, (10, -7), text(15).color(color));
        chart.draw_series(points.last().map(name))?;
    }
    Ok(())
}

/// A label for 1, 2 and 5 times a power of ten; other numbers have no space.
fn one_two_five(number: &f64) -> String {
    let label = format!("{number}");
    if label.starts_with(['1', '2', '5']) { label } else { String::new() }
}
