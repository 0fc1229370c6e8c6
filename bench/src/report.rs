//! The tables, and the text around them.

use std::fmt::{self, Display};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// The measurements so far, and what could not be measured.
#[derive(Default)]
pub struct Report {
    parts: Vec<Part>,
    skipped: Vec<String>,
}

/// A table with its title and an explanation of its columns.
struct Part {
    title: String,
    table: Table,
    legend: &'static str,
}

impl Report {
    /// Begins a table with these columns. The first holds the names of the rows.
    pub fn table<'a>(
        &mut self,
        title: impl Into<String>,
        columns: impl IntoIterator<Item = &'a str>,
        legend: &'static str,
    ) {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN).set_header(columns);
        self.parts.push(Part { title: title.into(), table, legend });
    }

    /// Begins a section of the table. Its title names the base of the ratios.
    pub fn section(&mut self, title: &str) {
        self.row([bold(title)]);
    }

    /// Adds a row: its name, then its figures.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let part = self.parts.last_mut().expect("a table has begun");
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(part.table.header().map_or(0, |header| header.cell_count()), String::new());
        part.table.add_row(cells);
    }

    /// Records what was not measured, and why.
    pub fn skip(&mut self, what: &str, why: impl Display) {
        self.skipped.push(format!("- {what}: {why}"));
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for Part { title, table, legend } in &self.parts {
            writeln!(f, "## {title}\n\n{table}\n\n{legend}\n")?;
        }
        if self.skipped.is_empty() {
            return Ok(());
        }
        writeln!(f, "Skipped:\n\n{}", self.skipped.join("\n"))
    }
}

/// The title of a section, as a cell.
pub fn bold(title: &str) -> String {
    format!("**{title}**")
}

/// A number rounded to an integer with thousands separators: 12,345.
pub fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with two decimals: 1.23.
pub fn two_places(number: f64) -> String {
    format!("{number:.2}")
}
