//! Tables in Markdown.

/// The rows of a table as cells, the header first.
pub type Table = Vec<Vec<String>>;

/// The first table in a text that `fits`.
pub fn find(text: &str, fits: impl Fn(&Table) -> bool) -> Option<Table> {
    let mut lines = text.lines().peekable();
    while lines.peek().is_some() {
        let mut table = Table::new();
        while let Some(cells) = lines.peek().and_then(|line| cells(line)) {
            table.push(cells);
            lines.next();
        }
        if !table.is_empty() && fits(&table) {
            // The header is followed by a line of dashes.
            table.retain(|cells| !cells.iter().all(|cell| cell.starts_with('-')));
            return Some(table);
        }
        lines.next();
    }
    None
}

fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// A number, possibly with thousands separators.
pub fn number(cell: &str) -> Option<f64> {
    cell.replace(',', "").parse().ok()
}
