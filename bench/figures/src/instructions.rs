//! The instructions of a request, as counted by `make bench`.

use anyhow::Result;
use plotters::prelude::*;

use super::tables::{self, Table};
use super::{ALL, BUCKET, Canvas, FIXED, INK, LOG, OTHER, SLIDING, text};

/// The rows to show, by their names in the table. Rows that were not measured are left out.
const ONE_KEY: [(&str, RGBColor); 11] = [
    ("INCR", INK),
    ("no-op module command", INK),
    ("RL.FIXED, allowed", FIXED),
    ("RL.SLIDING, allowed", SLIDING),
    ("RL.LOG, allowed", LOG),
    ("RL.BUCKET, allowed", BUCKET),
    ("MULTI, INCR, EXPIRE NX, EXEC", OTHER),
    ("CL.THROTTLE", OTHER),
    ("Lua, fixed window (`limits`)", OTHER),
    ("Lua, sliding window counter (`limits`)", OTHER),
    ("Lua, list of times (`limits`)", OTHER),
];
const THREE_KEYS: [(&str, RGBColor); 3] = [
    ("RL.FIXED three times, in a pipeline", FIXED),
    ("RL.ALL, three keys, FIXED", ALL),
    ("Lua, three keys (`litellm`)", OTHER),
];

const TOP: i32 = 48;
const HEIGHT: i32 = 30;
const GAP: i32 = 16;
const LEFT: i32 = 290;
const LONGEST: f64 = 530.0;

/// The bars, in groups.
pub struct Bars {
    server: String,
    groups: Vec<Vec<Bar>>,
}

struct Bar {
    label: String,
    cost: String,
    instructions: f64,
    color: RGBColor,
}

impl Bars {
    /// Reads the table of instructions, for its first server.
    pub fn read(text: &str) -> Option<Bars> {
        let table = tables::find(text, |table| cost(table, "RL.FIXED, allowed").is_some())?;
        let bar = |(name, color): &(&str, RGBColor)| {
            let cost = cost(&table, name)?;
            let instructions = tables::number(cost)?;
            Some(Bar { label: name.replace('`', ""), cost: cost.into(), instructions, color: *color })
        };
        let groups = [&ONE_KEY[..], &THREE_KEYS[..]].map(|group| group.iter().filter_map(bar).collect());
        Some(Bars { server: table[0].get(1)?.clone(), groups: groups.into() })
    }

    /// The height of the figure.
    pub fn height(&self) -> u32 {
        let bars = self.groups.iter().map(Vec::len).sum::<usize>() as i32;
        (TOP + bars * HEIGHT + self.groups.len() as i32 * GAP) as u32
    }

    /// Draws all bars to one scale.
    pub fn draw(&self, canvas: &Canvas) -> Result<()> {
        let title = format!("Instructions of the server for a request, {}: less is better", self.server);
        canvas.draw(&Text::new(title, (20, 12), text(17)))?;
        let most = self.groups.iter().flatten().map(|bar| bar.instructions).fold(0.0, f64::max);
        let mut top = TOP;
        for group in &self.groups {
            for bar in group {
                let right = LEFT + (bar.instructions / most * LONGEST) as i32;
                canvas.draw(&Text::new(bar.label.clone(), (20, top + 4), text(14)))?;
                canvas
                    .draw(&Rectangle::new([(LEFT, top), (right, top + HEIGHT - 10)], bar.color.filled()))?;
                canvas.draw(&Text::new(bar.cost.clone(), (right + 8, top + 4), text(14)))?;
                top += HEIGHT;
            }
            top += GAP;
        }
        Ok(())
    }
}

/// The second cell in the row with this name.
fn cost<'a>(table: &'a Table, name: &str) -> Option<&'a str> {
    table.iter().find(|row| row[0] == name)?.get(1).map(String::as_str)
}
