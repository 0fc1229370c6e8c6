//! Draws a `Tour` in the terminal's own green and red, so that it is readable on light and dark backgrounds.
//! Nothing is shown by colour alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, BorderType, LineGauge, Padding, RenderDirection, Sparkline};

use crate::state::{COMMANDS, LIMIT, Lane, Slice, Tour, WINDOW_MS};

const ALLOWED: Color = Color::Green;
const REFUSED: Color = Color::Red;

/// Draws the whole screen. `place` is the server's address.
pub fn draw(frame: &mut Frame, tour: &Tour, place: &str) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, tour);
    let columns =
        Layout::horizontal([Constraint::Ratio(1, COMMANDS.len() as u32); COMMANDS.len()])
            .areas::<{ COMMANDS.len() }>(body);
    // One scale for all charts, to make them comparable.
    let scale = tour.lanes.iter().flat_map(|lane| &lane.slices).map(|slice| slice.allowed.max(slice.refused));
    let scale = scale.max().unwrap_or(0).max(4);
    for ((command, lane), area) in COMMANDS.iter().zip(&tour.lanes).zip(columns) {
        draw_lane(frame, area, command, lane, scale);
    }
    let keys = " ↑↓ rate  b burst at a window's edge  r start again  q quit";
    frame.render_widget(Line::from(keys).bold(), foot);
    if foot.width as usize > keys.chars().count() + place.len() {
        frame.render_widget(Line::from(format!("{place} ").dim()).right_aligned(), foot);
    }
}

fn draw_head(frame: &mut Frame, area: Rect, tour: &Tour) {
    let limit = format!(" The same traffic, {LIMIT} allowed in {}", seconds(WINDOW_MS));
    frame.render_widget(Line::from(limit), area);
    let traffic = match (tour.burst_at, tour.rate) {
        (Some(edge), _) => format!("quiet, then a burst in {} ", seconds(edge.saturating_sub(tour.now()))),
        (None, 1) => "1 request a second ".to_owned(),
        (None, rate) => format!("{rate} requests a second "),
    };
    frame.render_widget(Line::from(traffic).bold().right_aligned(), area);
}

fn draw_lane(frame: &mut Frame, area: Rect, command: &str, lane: &Lane, scale: u64) {
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .title(Line::from(format!(" {command} ")).bold())
        .padding(Padding::horizontal(1));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let line = Constraint::Length(1);
    let chart = Constraint::Fill(1);
    let [gauge, most, _, allowed, allowed_chart, edges, refused, refused_chart] =
        Layout::vertical([line, line, line, line, chart, line, line, chart]).areas(inside);

    let used = LIMIT.saturating_sub(lane.remaining);
    let full = used as f64 / LIMIT as f64;
    let bar = LineGauge::default().ratio(full.min(1.0)).label(format!("used {used:>2}"));
    let bar = bar.filled_symbol("█").unfilled_symbol("░");
    let colour = if lane.remaining == 0 { REFUSED } else { ALLOWED };
    frame.render_widget(bar.filled_style(colour).unfilled_style(Modifier::DIM), gauge);

    let over = if lane.most > LIMIT { Style::from(REFUSED).bold() } else { Style::new() };
    frame.render_widget(
        Line::from(format!("most in {}: {}", seconds(WINDOW_MS), lane.most)).style(over),
        most,
    );

    frame.render_widget(Line::from(format!("allowed {}", lane.allowed)).fg(ALLOWED), allowed);
    draw_chart(frame, allowed_chart, lane, ALLOWED, scale, |slice| slice.allowed);
    draw_edges(frame, edges, lane);
    frame.render_widget(Line::from(format!("refused {}", lane.refused)).fg(REFUSED), refused);
    draw_chart(frame, refused_chart, lane, REFUSED, scale, |slice| slice.refused);
}

fn draw_chart(
    frame: &mut Frame,
    area: Rect,
    lane: &Lane,
    colour: Color,
    scale: u64,
    value: fn(&Slice) -> u64,
) {
    let chart = Sparkline::default()
        .data(lane.slices.iter().map(value))
        .direction(RenderDirection::RightToLeft)
        .max(scale)
        .style(colour);
    frame.render_widget(chart, area);
}

/// A ruler that marks the starts of the clock's windows.
fn draw_edges(frame: &mut Frame, area: Rect, lane: &Lane) {
    let slices = lane.slices.iter().take(area.width.into()).rev();
    let ruler: String = slices.map(|slice| if slice.begins_a_window() { '┼' } else { '─' }).collect();
    frame.render_widget(Line::from(ruler).right_aligned(), area);
}

/// A time in whole seconds, rounded up.
fn seconds(ms: u64) -> String {
    format!("{} s", ms.div_ceil(1_000))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn frame_of(tour: &Tour, width: u16, height: u16) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, tour, "redis-cli -p 40000")).expect("a frame");
        terminal.backend().clone()
    }

    /// The screen two seconds after a burst at the edge of a window.
    fn after_a_burst() -> Tour {
        let edge = 1_000 * WINDOW_MS;
        let mut tour = Tour::new(edge - 3_000);
        tour.rate = 0;
        (0..50).for_each(|frame| assert!(tour.advance(edge - 3_000 + 100 * frame).is_empty()));
        for (number, lane) in tour.lanes.iter_mut().enumerate() {
            (0..LIMIT).for_each(|_| lane.record(edge - 1, true));
            (0..LIMIT).for_each(|_| lane.record(edge, number == 0));
            lane.remaining = if number == 1 { 8 } else { 0 };
        }
        tour
    }

    #[test]
    fn a_frame_shows_how_a_burst_at_the_edge_passes_fixed_alone() {
        let frame = frame_of(&after_a_burst(), 96, 20).to_string();
        for shown in [
            "│ most in 5 s: 40      ││ most in 5 s: 20      ││ most in 5 s: 20      ││ most in 5 s: 20      │",
            "│ allowed 40           ││ allowed 20           ││ allowed 20           ││ allowed 20           │",
            "│           ──────┼─── ││           ──────┼─── ││           ──────┼─── ││           ──────┼─── │",
            "│ refused 0            ││ refused 20           ││ refused 20           ││ refused 20           │",
        ] {
            assert!(frame.contains(shown), "\n{frame}");
        }
    }

    #[test]
    fn at_60_columns_the_help_is_whole() {
        assert!(frame_of(&after_a_burst(), 60, 20).to_string().contains("q quit"));
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn() {
        for size in [(1, 1), (20, 5), (80, 24), (300, 80)] {
            frame_of(&after_a_burst(), size.0, size.1);
        }
    }

    #[test]
    fn colours_are_the_terminals_own_on_its_own_background() {
        let frame = frame_of(&after_a_burst(), 96, 20);
        for cell in &frame.buffer().content {
            assert!([Color::Reset, ALLOWED, REFUSED].contains(&cell.fg), "{cell:?}");
            assert_eq!(cell.bg, Color::Reset, "{cell:?}");
        }
    }
}
