//! The page for a person: what it comes to, then the findings by area, the bad ones with reason and remedy.

use std::fmt::{self, Write as _};

use super::finding::{Area, Finding, Level, counted};
use super::{Checkup, Route};
use crate::format::printable;

/// Columns of the page.
const WIDTH: usize = 100;
/// Columns before the text of a finding.
const MARGIN: usize = 9;
/// Drives in a table; beyond it lines would be too long to read.
const COLUMNS: usize = 12;

impl fmt::Display for Checkup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        wrapped(f, "", &self.verdict.summary)?;
        writeln!(f, "{}", self.counts())?;
        if !self.verdict.gds {
            wrapped(f, "", "Weights still load, through host memory: `gds load` picks the path by itself.")?;
        }
        for area in Area::ALL {
            let mut findings = self.findings.iter().filter(|finding| finding.area == area).peekable();
            if findings.peek().is_none() {
                continue;
            }
            writeln!(f, "\n{}", heading(area))?;
            findings.try_for_each(|finding| entry(f, finding))?;
            if area == Area::Topology {
                table(f, &self.routes)?;
            }
        }
        Ok(())
    }
}

impl Checkup {
    fn counts(&self) -> String {
        let count = |level| self.findings.iter().filter(|finding| finding.level == level).count();
        let counts = [(Level::Failure, "failure"), (Level::Warning, "warning")]
            .into_iter()
            .filter_map(|(level, name)| Some((count(level), name)).filter(|(count, _)| *count > 0))
            .map(|(count, name)| counted(count, name));
        let counts: Vec<String> = counts.collect();
        if counts.is_empty() { "Nothing to complain of.".into() } else { format!("{}.", counts.join(", ")) }
    }
}

fn heading(area: Area) -> &'static str {
    match area {
        Area::Machine => "Machine",
        Area::Gpu => "GPUs",
        Area::Driver => "Kernel modules",
        Area::Cufile => "cuFile",
        Area::Config => "cufile.json",
        Area::Storage => "Storage",
        Area::Topology => "Topology",
        Area::Limits => "Limits",
    }
}

fn entry(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    let mark = match finding.level {
        Level::Ok => "  ok     ",
        Level::Info => "         ",
        Level::Warning => "  warn   ",
        Level::Failure => "  FAIL   ",
    };
    wrapped(f, mark, &finding.found)?;
    if finding.level >= Level::Warning {
        let why = finding.why.as_ref().map(|why| format!("Because {why}."));
        let advice = finding.advice.as_ref().map(|advice| format!("→ {advice}"));
        for text in why.into_iter().chain(advice) {
            wrapped(f, &" ".repeat(MARGIN), &text)?;
        }
    }
    Ok(())
}

/// Writes `text` after `mark`, broken at spaces, the lines after the first indented as far.
fn wrapped(f: &mut fmt::Formatter<'_>, mark: &str, text: &str) -> fmt::Result {
    let indent = mark.chars().count();
    let mut line = mark.to_owned();
    let mut column = indent;
    // A path may hold anything.
    for word in printable(text).split(' ') {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            writeln!(f, "{}", line.trim_end())?;
            line = " ".repeat(indent);
            column = indent;
        }
        if column > indent {
            line.push(' ');
            column += 1;
        }
        line.push_str(word);
        column += length;
    }
    writeln!(f, "{}", line.trim_end())
}

/// The distances: a line for each GPU, a column for each drive.
fn table(f: &mut fmt::Formatter<'_>, routes: &[Route]) -> fmt::Result {
    let mut drives: Vec<&str> = routes.iter().map(|route| route.drive.as_str()).collect();
    drives.sort_unstable();
    drives.dedup();
    if routes.is_empty() || drives.len() > COLUMNS {
        return Ok(());
    }
    // The domain is 0000 on nearly every machine; where it is on all, it is left out.
    let all_in_domain_0 = routes
        .iter()
        .flat_map(|route| [&route.gpu, &route.drive])
        .all(|address| address.starts_with("0000:"));
    let short = |address: &str| if all_in_domain_0 { address[5..].to_owned() } else { address.to_owned() };
    let width = if all_in_domain_0 { 7 } else { 12 };
    let mut heading = format!("{:MARGIN$}{:width$}", "", "GPU");
    for drive in &drives {
        write!(heading, "  {:width$}", short(drive))?;
    }
    writeln!(f, "{}", heading.trim_end())?;
    for row in routes.chunk_by(|one, next| one.gpu == next.gpu) {
        let mut line = format!(
            "{:MARGIN$}{:width$}",
            "",
            row.first().map(|route| short(&route.gpu)).unwrap_or_default()
        );
        for drive in &drives {
            let route = row.iter().find(|route| route.drive == *drive);
            write!(line, "  {:width$}", route.map_or("", |route| route.distance.code()))?;
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    let legend =
        "PXB: behind one switch. PHB: at one host bridge. NODE: on one socket. SYS: across the sockets.";
    wrapped(f, &" ".repeat(MARGIN), legend)
}
