//! The table, and what is said around it.

use std::fmt::{self, Display};

use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

/// What was measured so far, and what could not be.
pub struct Report {
    table: Table,
    skipped: Vec<String>,
}

const LEGEND: &str = "\
Cost: instructions of the server for a request (callgrind; one pipeline to 100 keys in use; the least of three times),
or what the section names. A second: requests by `redis-benchmark -P 64`, in turns with what the ratio is to; the
median of the turns and, in parentheses, the middle half. By CPU time: that ratio in seconds for which the server ran,
which others on the machine disturb less. The floor: a module's command that takes the same arguments, does nothing and
answers five integers.";

/// A row. What was not measured is empty.
#[derive(Default)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// In instructions, or in what the section names.
    pub cost: String,
    /// To that of what the section names.
    pub ratio: String,
    /// For the ratio, or for the cost where there is none.
    pub goal: String,
    /// How fast it is.
    pub speed: Speed,
}

/// The cells of a row that are about requests a second.
#[derive(Default)]
pub struct Speed {
    /// Requests a second.
    pub a_second: String,
    /// To that of what the section names.
    pub ratio: String,
    /// For that ratio.
    pub goal: String,
    /// The ratio in seconds for which the server ran.
    pub cpu_ratio: String,
}

impl Report {
    /// With nothing in it.
    pub fn new() -> Report {
        let mut table = Table::new();
        table.load_style(ASCII_MARKDOWN);
        table.set_header([
            "",
            "cost",
            "ratio",
            "goal",
            "a second",
            "ratio (middle half)",
            "goal",
            "ratio by CPU time",
        ]);
        Report { table, skipped: Vec::new() }
    }

    /// Begins a section; its title says what the ratios are to.
    pub fn section(&mut self, title: &str) {
        self.row(Row { what: format!("**{title}**"), ..Row::default() });
    }

    /// Adds a row.
    pub fn row(&mut self, row: Row) {
        let Row { what, cost, ratio, goal, speed } = row;
        let Speed { a_second, ratio: speed_ratio, goal: speed_goal, cpu_ratio } = speed;
        self.table.add_row([what, cost, ratio, goal, a_second, speed_ratio, speed_goal, cpu_ratio]);
    }

    /// Notes what was not measured, and why.
    pub fn skip(&mut self, what: &str, why: impl Display) {
        self.skipped.push(format!("- {what}: {why}"));
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{}\n\n{LEGEND}", self.table)?;
        if self.skipped.is_empty() {
            return Ok(());
        }
        write!(f, "\nSkipped:\n\n{}", self.skipped.join("\n"))
    }
}

/// A goal, and whether what was measured meets it.
#[derive(Clone, Copy)]
pub enum Goal {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Goal {
    /// Whether this meets it.
    pub fn is_met_by(self, measured: f64) -> bool {
        match self {
            Goal::AtMost(most) => measured <= most,
            Goal::AtLeast(least) => measured >= least,
        }
    }

    /// The goal, and how it stands.
    pub fn beside(self, measured: Option<f64>) -> String {
        let standing = match measured {
            None => "not measured",
            Some(measured) if self.is_met_by(measured) => "met",
            Some(_) => "not met",
        };
        format!("{self}, {standing}")
    }
}

impl Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Goal::AtMost(most) if *most >= 1000.0 => write!(f, "at most {}", grouped(*most)),
            Goal::AtMost(most) => write!(f, "at most {most:.2}"),
            Goal::AtLeast(least) => write!(f, "at least {least:.2}"),
        }
    }
}

/// A whole number with its thousands apart: 12,345.
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

/// What was measured, or nothing.
pub fn shown<T>(measured: Option<T>, show: impl FnOnce(T) -> String) -> String {
    measured.map(show).unwrap_or_default()
}

/// 1.23.
pub fn two_places(number: f64) -> String {
    format!("{number:.2}")
}
