//! What a request costs the server, as `make bench` counted it.

use anyhow::{Context, Result};
use plotters::prelude::*;

use super::{Canvas, FIXED, INK, LOG, OTHER, SLIDING, text};

/// The rows to show, named as in the table of `make bench`.
const ROWS: [(&str, RGBColor); 9] = [
    ("INCR", INK),
    ("floor, one tier", INK),
    ("RL.FIXED, allowed", FIXED),
    ("RL.SLIDING, allowed", SLIDING),
    ("RL.LOG, allowed", LOG),
    ("MULTI, INCR, EXPIRE NX, EXEC", OTHER),
    ("Lua fixed window of `limits`", OTHER),
    ("Lua sliding counter of `limits`", OTHER),
    ("Lua log on a list of `limits`", OTHER),
];

const HEIGHT: i32 = 36;
const TOP: i32 = 56;
const LEFT: i32 = 270;
const LONGEST: f64 = 540.0;

pub fn draw(canvas: &Canvas, table: &str) -> Result<()> {
    canvas.draw(&Text::new("Instructions of the server for a request", (20, 12), text(17)))?;
    let costs = ROWS.iter().map(|(name, _)| instructions(table, name)).collect::<Result<Vec<f64>>>()?;
    let most = costs.iter().copied().fold(0.0, f64::max);
    for (i, ((name, color), cost)) in ROWS.iter().zip(costs).enumerate() {
        let top = TOP + i as i32 * HEIGHT;
        let right = LEFT + (cost / most * LONGEST) as i32;
        canvas.draw(&Text::new(name.replace('`', ""), (20, top + 5), text(14)))?;
        canvas.draw(&Rectangle::new([(LEFT, top), (right, top + HEIGHT - 12)], color.filled()))?;
        canvas.draw(&Text::new(format!("{cost}"), (right + 8, top + 5), text(14)))?;
    }
    Ok(())
}

/// The second column of the first row of this name.
fn instructions(table: &str, name: &str) -> Result<f64> {
    let cells = |line: &'_ str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let row = table.lines().map(cells).find(|row| row.get(1).is_some_and(|cell| cell == name));
    let cost = row.as_ref().and_then(|row| row.get(2)).with_context(|| format!("no row {name}"))?;
    cost.replace(',', "").parse().with_context(|| format!("{name} costs {cost}"))
}
