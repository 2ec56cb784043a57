//! The benchmark as a picture: a bar a path, a dot a round, a line a limit.
//!
//! Cold bars are filled and their dots round, warm bars are hollow and their dots square, so that the two can be told apart in grey
//! as well. What was neither is grey and stands by itself. The colours are Okabe and Ito's, made for colour-blind eyes.

use gds_loader::Measure;
use gds_loader::bench::{Asked, Limit, Overlap, Row, Summary};
use gds_loader::format::steers_a_terminal;
use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::Report;
use super::table;
use crate::cli::describe;
use crate::cli::sizes;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

const WIDTH: u32 = 1040;
const MARGIN: i32 = 28;
/// Left of the axis, for the names of the rows.
const NAMES: u32 = 210;
/// Right of the last gridline, for the figures beside the longest bar.
const ROW: u32 = 36;
const HEAD: u32 = 92;
const HEADING: u32 = 56;
const AXIS: u32 = 48;
/// For each line of labels above a panel.
const LABEL: u32 = 20;
/// Small print, a line.
const FOOT: u32 = 20;

const BLUE: RGBColor = RGBColor(0, 114, 178);
const ORANGE: RGBColor = RGBColor(213, 94, 0);
const INK: RGBColor = RGBColor(34, 34, 34);
const GREY: RGBColor = RGBColor(96, 96, 96);
const FAINT: RGBColor = RGBColor(226, 226, 226);

/// A limit further right than this times the fastest row would squeeze the rows; it is told in words instead.
const FAR: f64 = 1.8;

/// Makes the picture.
pub(super) fn draw(report: &Report) -> anyhow::Result<String> {
    let paths = Paths::of(report);
    let overlap_height = if report.overlap.is_empty() { 0 } else { Overlaps(&report.overlap).height() };
    let feet = feet(report);
    let height = HEAD + paths.height() + overlap_height + feet.len() as u32 * FOOT + 30;
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, rest) = root.split_vertically(HEAD);
        title(&head, report)?;
        let (upper, rest) = rest.split_vertically(paths.height());
        paths.draw(&upper)?;
        let (lower, foot) = rest.split_vertically(overlap_height);
        if !report.overlap.is_empty() {
            Overlaps(&report.overlap).draw(&lower)?;
        }
        for (line, text) in feet.iter().enumerate() {
            let y = 18 + line as i32 * FOOT as i32;
            write(&foot, text, (MARGIN, y), 13.0, GREY, HPos::Left)?;
        }
        root.present()?;
    }
    Ok(plain(&with_title(&picture, &headline(report))))
}

fn headline(report: &Report) -> String {
    let subject = &report.subject;
    let name = subject.path.file_name().unwrap_or(subject.path.as_os_str()).to_string_lossy();
    let to = describe::device(&subject.device);
    let to = if to == "cpu" { "host memory".to_owned() } else { to };
    format!("Loading {} ({}) into {}", shorten(&name, 40), sizes::bytes(subject.bytes), shorten(&to, 44))
}

fn title(area: &Area<'_>, report: &Report) -> anyhow::Result<()> {
    write(area, &headline(report), (MARGIN, 34), 24.0, INK, HPos::Left)?;
    let machine = table::machine(&report.machine);
    let machine = machine.split(';').next().unwrap_or_default();
    let storage = table::storage(&report.machine.storage);
    let text = shorten(&format!("{machine}; {storage}"), 128);
    write(area, &text, (MARGIN, 62), 14.0, GREY, HPos::Left)?;
    let rounds = sizes::plural(report.rounds.into(), "round");
    let text = format!(
        "A bar is the median of {rounds}, interleaved and shuffled; a dot is one of them. Longer is faster."
    );
    write(area, &text, (MARGIN, 82), 14.0, GREY, HPos::Left)
}

/// The small print: limits that are off the scale or not known, and paths that did not run.
fn feet(report: &Report) -> Vec<String> {
    let most = Paths::of(report).most();
    let far = report.limits.iter().filter_map(|limit| {
        let median = limit.gb_per_s?.median;
        (median > most * FAR).then(|| format!("{}: {}, off the scale", name(limit), rate(median)))
    });
    let missing = table::missing(report).into_iter().map(|text| format!("Not available: {text}"));
    far.chain(missing).flat_map(|text| wrap(&text, 140)).collect()
}

/// Lines of at most `most` characters, broken between words.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let len = lines.last().map_or(0, |line| line.chars().count());
        if len > 0 && len + 1 + word.chars().count() > most {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// One row of the upper panel.
struct Bar<'a> {
    name: String,
    row: &'a Row,
    rate: Summary,
}

/// What the page cache held when the loads of a group began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Cold,
    Warm,
    /// Not what had been asked for, or nobody knows.
    Neither,
}

impl Group {
    const ALL: [Self; 3] = [Self::Cold, Self::Warm, Self::Neither];

    fn of(row: &Row) -> Self {
        match row.case.asked.filter(|_| row.is_proven()) {
            Some(Asked::Cold) => Self::Cold,
            Some(Asked::Warm) => Self::Warm,
            None => Self::Neither,
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Self::Cold => "Cold: nothing of the files in the page cache",
            Self::Warm => "Warm: all of the files in the page cache",
            Self::Neither => "Neither: the page cache could not be brought to what was asked for",
        }
    }

    fn colour(self) -> RGBColor {
        match self {
            Self::Cold => BLUE,
            Self::Warm => ORANGE,
            Self::Neither => GREY,
        }
    }
}

/// The upper panel: paths, by what the page cache held.
struct Paths<'a> {
    groups: Vec<(Group, Vec<Bar<'a>>)>,
    limits: Vec<(&'a Limit, f64)>,
}

impl<'a> Paths<'a> {
    fn of(report: &'a Report) -> Self {
        let bars = |group| -> Vec<Bar<'a>> {
            let of_group = |row: &&Row| row.case.measure == Measure::Pipelined && Group::of(row) == group;
            let bar = |row: &'a Row| {
                let lane = row.case.lane.to_string();
                let name = if group == Group::Neither { format!("{lane}, {}", row.state) } else { lane };
                Some(Bar { name, row, rate: row.gb_per_s? })
            };
            report.rows.iter().filter(of_group).filter_map(bar).collect()
        };
        let groups: Vec<_> = Group::ALL
            .into_iter()
            .map(|group| (group, bars(group)))
            .filter(|(_, bars)| !bars.is_empty())
            .collect();
        let mut paths = Self { groups, limits: Vec::new() };
        let most = paths.most();
        paths.limits = report
            .limits
            .iter()
            .filter_map(|limit| Some((limit, limit.gb_per_s?.median)))
            .filter(|(_, median)| *median <= most * FAR)
            .collect();
        paths.limits.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        paths
    }

    /// The fastest round of all.
    fn most(&self) -> f64 {
        let rates = self.groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.rate.max);
        rates.fold(0.0, f64::max).max(1e-3)
    }

    /// Bars and headings, in rows of the panel.
    fn lines(&self) -> usize {
        self.groups.iter().map(|(_, bars)| bars.len() + 1).sum()
    }

    fn labels(&self) -> u32 {
        self.limits.len() as u32 * LABEL
    }

    fn height(&self) -> u32 {
        self.labels() + self.lines() as u32 * ROW + AXIS + 12
    }

    fn draw(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let limit = self.limits.last().map_or(0.0, |(_, median)| *median);
        // Room for the figure beside the longest bar.
        let end = (self.most() * 1.14).max(limit * 1.03);
        let lines = self.lines() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_left(MARGIN)
            .margin_right(MARGIN)
            .margin_top(self.labels())
            .y_label_area_size(NAMES)
            .x_label_area_size(AXIS)
            .build_cartesian_2d(0.0..end, lines..0.0)?;
        axis(&mut chart, "GB/s (10⁹ bytes a second)")?;
        let edge = chart.backend_coord(&(0.0, 0.0));
        for (index, (limit, median)) in self.limits.iter().enumerate() {
            // Dashes of their own for each limit, and the label on a line of its own.
            let dash = [9, 5, 2][index % 3];
            let path = [(*median, lines), (*median, 0.0)];
            chart.draw_series(DashedLineSeries::new(path, dash, 4, GREY.stroke_width(2)))?;
            let at = chart.backend_coord(&(*median, 0.0));
            let above = edge.1 - 10 - (self.limits.len() - 1 - index) as i32 * LABEL as i32;
            let text = format!("{}: {}", name(limit), rate(*median));
            let half = width(&text, 13.0) / 2;
            let x = at.0.clamp(edge.0 + half, WIDTH as i32 - MARGIN - half);
            write_at(area, &text, (x, above), 13.0, GREY, HPos::Center)?;
            area_line(area, at, above)?;
        }
        let mut line = 0.0;
        for (group, bars) in &self.groups {
            let at = chart.backend_coord(&(0.0, line + 0.62));
            heading(area, group.heading(), (at.0 - NAMES as i32, at.1))?;
            line += 1.0;
            for bar in bars {
                self.bar(area, &mut chart, bar, *group, line)?;
                line += 1.0;
            }
        }
        Ok(())
    }

    fn bar(
        &self,
        area: &Area<'_>,
        chart: &mut Chart<'_, '_>,
        bar: &Bar<'_>,
        group: Group,
        line: f64,
    ) -> anyhow::Result<()> {
        let colour = group.colour();
        let corners = [(0.0, line + 0.17), (bar.rate.median, line + 0.83)];
        let fill = colour.mix(if group == Group::Cold { 0.38 } else { 0.10 });
        chart.draw_series([Rectangle::new(corners, fill.filled())])?;
        chart.draw_series([Rectangle::new(corners, colour.stroke_width(2))])?;
        // The median, marked beyond the bar's ends.
        let mark = vec![(bar.rate.median, line + 0.08), (bar.rate.median, line + 0.92)];
        chart.draw_series([PathElement::new(mark, colour.stroke_width(4))])?;
        let rounds: Vec<f64> = bar.row.counted().map(|round| round.gb_per_s).collect();
        for (index, value) in rounds.iter().enumerate() {
            // Side by side in the order of the rounds, so that equal ones do not hide each other.
            let share = if rounds.len() > 1 { index as f64 / (rounds.len() - 1) as f64 } else { 0.5 };
            let at = (*value, line + 0.28 + 0.44 * share);
            if group == Group::Cold {
                chart.draw_series([Circle::new(at, 4, WHITE.filled())])?;
                chart.draw_series([Circle::new(at, 4, INK.stroke_width(1))])?;
            } else {
                let square =
                    |style: ShapeStyle| EmptyElement::at(at) + Rectangle::new([(-3, -3), (4, 4)], style);
                chart.draw_series([square(WHITE.filled())])?;
                chart.draw_series([square(INK.stroke_width(1))])?;
            }
        }
        let axis = chart.backend_coord(&(0.0, line + 0.5));
        write_at(area, &shorten(&bar.name, 28), (axis.0 - 10, axis.1), 15.0, INK, HPos::Right)?;
        let end = chart.backend_coord(&(bar.rate.max.max(bar.rate.median), line + 0.5));
        figure(area, &rate(bar.rate.median), (end.0 + 12, end.1))
    }
}

/// The lower panel: what a load hides.
struct Overlaps<'a>(&'a [Overlap]);

impl Overlaps<'_> {
    fn height(&self) -> u32 {
        self.0.len() as u32 * 5 * ROW + HEADING + AXIS
    }

    fn draw(&self, area: &Area<'_>) -> anyhow::Result<()> {
        let parts = |overlap: &Overlap| {
            [
                ("serial", overlap.serial),
                ("read alone", overlap.read_alone),
                ("copy alone", overlap.copy_alone),
                ("pipelined", overlap.pipelined),
            ]
        };
        let most = self.0.iter().flat_map(parts).map(|(_, seconds)| seconds.max).fold(1e-6, f64::max);
        let lines = self.0.len() as f64 * 5.0;
        let mut chart = ChartBuilder::on(area)
            .margin_left(MARGIN)
            .margin_right(MARGIN)
            .margin_top(HEADING)
            .y_label_area_size(NAMES)
            .x_label_area_size(AXIS)
            .build_cartesian_2d(0.0..most * 1.14, lines..0.0)?;
        axis(&mut chart, "seconds (shorter is faster)")?;
        let edge = chart.backend_coord(&(0.0, 0.0));
        let text = "Reading and copying at the same time; a line runs from the quickest round to the slowest";
        write_at(area, text, (edge.0 - NAMES as i32, edge.1 - 20), 16.0, INK, HPos::Left)?;
        let mut line = 0.0;
        for overlap in self.0 {
            let at = chart.backend_coord(&(0.0, line + 0.62));
            let text = format!(
                "{}: pipelined takes {:.2} times the longer of read and copy",
                overlap.label, overlap.over_longer.median
            );
            heading(area, &text, (at.0 - NAMES as i32, at.1))?;
            line += 1.0;
            for (name, seconds) in parts(overlap) {
                let of_load = if overlap.asked == Asked::Cold { BLUE } else { ORANGE };
                let colour = if name == "pipelined" { of_load } else { GREY };
                let corners = [(0.0, line + 0.2), (seconds.median, line + 0.8)];
                let fill = colour.mix(if name == "pipelined" { 0.38 } else { 0.14 });
                chart.draw_series([Rectangle::new(corners, fill.filled())])?;
                chart.draw_series([Rectangle::new(corners, colour.stroke_width(2))])?;
                // From the quickest round to the slowest.
                let spread = vec![(seconds.min, line + 0.5), (seconds.max, line + 0.5)];
                chart.draw_series([PathElement::new(spread, INK.stroke_width(2))])?;
                for end in [seconds.min, seconds.max] {
                    let cap = vec![(end, line + 0.36), (end, line + 0.64)];
                    chart.draw_series([PathElement::new(cap, INK.stroke_width(2))])?;
                }
                let axis = chart.backend_coord(&(0.0, line + 0.5));
                write_at(area, name, (axis.0 - 10, axis.1), 15.0, INK, HPos::Right)?;
                let end = chart.backend_coord(&(seconds.max, line + 0.5));
                figure(area, &format!("{} s", sizes::seconds(seconds.median)), (end.0 + 12, end.1))?;
                line += 1.0;
            }
        }
        Ok(())
    }
}

/// Gridlines and the scale below; names of rows are written beside it by hand.
fn axis(chart: &mut Chart<'_, '_>, unit: &str) -> anyhow::Result<()> {
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(9)
        .x_label_formatter(&|value| trim(*value))
        .x_desc(unit)
        .axis_desc_style(font(14.0).color(&GREY))
        .label_style(font(13.0).color(&GREY))
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .draw()?;
    Ok(())
}

/// `2`, `2.5`: without zeros that say nothing.
fn trim(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A figure on white, so that no line runs through it.
fn figure(area: &Area<'_>, text: &str, at: (i32, i32)) -> anyhow::Result<()> {
    let origin = area.get_base_pixel();
    let (x, y) = (at.0 - origin.0, at.1 - origin.1);
    let corners = [(x - 3, y - 9), (x + width(text, 15.0) + 3, y + 9)];
    area.draw(&Rectangle::new(corners, WHITE.mix(0.85).filled()))?;
    write_at(area, text, at, 15.0, INK, HPos::Left)
}

/// From a limit's label down to its line.
fn area_line(area: &Area<'_>, at: (i32, i32), label: i32) -> anyhow::Result<()> {
    let origin = area.get_base_pixel();
    let down = |y: i32| (at.0 - origin.0, y - origin.1);
    if label + 9 < at.1 {
        area.draw(&PathElement::new(vec![down(label + 9), down(at.1)], GREY.stroke_width(1)))?;
    }
    Ok(())
}

/// Text at a place of the whole picture.
fn write_at(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: f64,
    colour: RGBColor,
    side: HPos,
) -> anyhow::Result<()> {
    let origin = area.get_base_pixel();
    write(area, text, (at.0 - origin.0, at.1 - origin.1), size, colour, side)
}

/// Text at a place of this area; the place is the middle of the text's height.
fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: f64,
    colour: RGBColor,
    side: HPos,
) -> anyhow::Result<()> {
    let style = font(size).color(&colour).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}

/// A font whose size in the picture is `size` pixels: plotters writes sizes smaller by this factor.
fn font<'a>(size: f64) -> FontDesc<'a> {
    ("sans-serif", size * 1.24).into_font()
}

/// A heading in bold, on white.
fn heading(area: &Area<'_>, text: &str, at: (i32, i32)) -> anyhow::Result<()> {
    let origin = area.get_base_pixel();
    let (x, y) = (at.0 - origin.0, at.1 - origin.1);
    area.draw(&Rectangle::new([(x, y - 10), (x + width(text, 15.5), y + 10)], WHITE.filled()))?;
    let style = font(15.0).style(FontStyle::Bold).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(text.to_owned(), (x, y), style))?;
    Ok(())
}

/// About how many pixels wide a text is: without the viewer's font nobody knows.
fn width(text: &str, size: f64) -> i32 {
    (text.chars().count() as f64 * size * 0.56).ceil() as i32
}

fn name(limit: &Limit) -> String {
    format!("{} limit", limit.limit.as_str())
}

fn rate(gb_per_s: f64) -> String {
    format!("{} GB/s", sizes::gb_per_s((gb_per_s * 1e9) as u64, 1.0))
}

fn shorten(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// The picture with a title for those who cannot see it.
fn with_title(picture: &str, title: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    match picture.split_once(">\n") {
        Some((tag, rest)) => format!("{tag} role=\"img\">\n<title>{title}</title>\n{rest}"),
        None => picture.to_owned(),
    }
}

/// The picture without what names and reasons may hold and XML may not, not even escaped, and without what steers the terminal of
/// someone who looks at the text. Of our own are line breaks alone.
fn plain(picture: &str) -> String {
    let is_ours = |character| match character {
        '\n' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        character => !steers_a_terminal(character),
    };
    let mut plain = String::with_capacity(picture.len());
    for character in picture.chars() {
        if is_ours(character) {
            plain.push(character);
        } else {
            plain.extend(character.escape_default());
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_holds_nothing_that_xml_does_not() {
        let text = "<text>\nev\u{1b}]0;pwn\u{7}il\u{202e}\u{ffff} größe\n</text>";
        let shown = plain(text);
        assert_eq!(shown, "<text>\nev\\u{1b}]0;pwn\\u{7}il\\u{202e}\\u{ffff} größe\n</text>");
        assert!(roxmltree::Document::parse(text).is_err() && roxmltree::Document::parse(&shown).is_ok());
    }
}
