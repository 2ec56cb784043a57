//! Standard output: tables for people, one JSON object for programs.
//!
//! `println!` panics when the reader has gone away (`gds inspect | head`), so everything is written through this buffered writer,
//! whose errors are values. It is flushed by [`Output::finish`] only, after the result is complete. A reader that has gone had what it
//! wanted: that is no error, and changes nothing about how the command ends.
//!
//! Results hold names and reasons out of files, whose writers must not write on the reader's terminal. So lines and cells are
//! escaped here, all of them, and not where they are made.

use std::fmt::Display;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::Path;

use anyhow::Context;
use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, TableStyle};
use serde::{Serialize, Serializer};

pub(crate) use gds_loader::format::printable;
use gds_loader::format::steers_a_terminal;

/// Buffered standard output.
#[derive(Debug)]
pub(crate) struct Output(BufWriter<WhileRead<StdoutLock<'static>>>);

impl Output {
    pub(crate) fn new() -> Self {
        Self(BufWriter::with_capacity(64 << 10, WhileRead(io::stdout().lock())))
    }

    /// One line of text, escaped.
    pub(crate) fn line(&mut self, text: impl Display) -> anyhow::Result<()> {
        self.marked("", text)
    }

    /// The same after a mark, which is our own and may be in colour.
    pub(crate) fn marked(&mut self, mark: &str, text: impl Display) -> anyhow::Result<()> {
        self.write(format_args!("{mark}{}", printable(&text.to_string())))
    }

    /// An empty line, which parts one table from the next.
    pub(crate) fn gap(&mut self) -> anyhow::Result<()> {
        self.line("")
    }

    /// A table, without the spaces that fill its last column.
    pub(crate) fn table(&mut self, table: &Table) -> anyhow::Result<()> {
        table.lines().try_for_each(|line| self.write(line.trim_end()))
    }

    /// One JSON object: indented for a terminal, on one line for a program. It is written whole or, where it cannot be made, not at
    /// all.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = if io::stdout().is_terminal() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        self.write(printable_json(&text.context("making JSON of the result")?))
    }

    /// A line as it is.
    fn write(&mut self, line: impl Display) -> anyhow::Result<()> {
        writeln!(self.0, "{line}").context("writing to standard output")
    }

    /// Hands everything to the reader; an output that could not be written (a full disk) is an error, not a success.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.0.flush().context("writing to standard output")
    }
}

/// A pipe whose reader may leave at any time: what it leaves unread is dropped.
#[derive(Debug)]
pub(crate) struct WhileRead<W>(pub(crate) W);

impl<W: Write> Write for WhileRead<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        while_read(self.0.write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        while_read(self.0.flush(), ())
    }
}

/// `gone` where the reader has.
pub(crate) fn while_read<T>(result: io::Result<T>, gone: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(gone),
        other => other,
    }
}

/// A path as JSON text, which must be Unicode where a path need not be: bytes that are not become U+FFFD, rather than an error.
pub(crate) fn path_as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// How a column's cells stand under its heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows of cells.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// Adds a row of cells, escaped; the items of a list have lines of their own.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = impl AsRef<str>>) {
        self.0.add_row(cells.into_iter().map(|cell| printable_lines(cell.as_ref(), LIST)));
    }

    fn lines(&self) -> impl Iterator<Item = String> {
        self.0.lines()
    }
}

/// An empty table in the house style: a bold heading, one rule, and no other lines; columns wrap only on a terminal.
pub(crate) fn table(columns: &[(&str, Align)]) -> Table {
    use comfy_table::{ContentLineStyle, LineStyle};
    const HOUSE: TableStyle = TableStyle::new()
        .header_lines(ContentLineStyle::none())
        .header_separator(LineStyle::none().fill('─').junction('─'))
        .content_lines(ContentLineStyle::none());

    let mut table = comfy_table::Table::new();
    table.load_style(HOUSE).set_content_arrangement(if io::stdout().is_terminal() {
        ContentArrangement::Dynamic
    } else {
        ContentArrangement::Disabled
    });
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    if !columns.is_empty() {
        table.set_header(columns.iter().map(|(name, _)| Cell::new(name).add_attribute(Attribute::Bold)));
    }
    for (column, (_, align)) in table.column_iter_mut().zip(columns) {
        column.set_cell_alignment(match align {
            Align::Left => CellAlignment::Left,
            Align::Right => CellAlignment::Right,
        });
        column.set_padding((0, 3));
    }
    Table(table)
}

/// A table of facts: a name and its value a line, no heading.
pub(crate) fn facts<'a>(facts: impl IntoIterator<Item = (&'a str, String)>) -> Table {
    let mut table = table(&[]);
    for (name, value) in facts {
        table.add_row([name, &value]);
    }
    for column in table.0.column_iter_mut() {
        column.set_padding((0, 3));
    }
    table
}

/// What an item of a list begins with, in a message that has one.
pub(crate) const LIST: &str = "\n  ";

/// Text of several lines, of which each that follows `separator` is our own: a line break in a name makes no line.
pub(crate) fn printable_lines(text: &str, separator: &str) -> String {
    text.split(separator).map(printable).collect::<Vec<_>>().join(separator)
}

/// The same for JSON, which leaves a part of it as it is. What is not within a string are line breaks and spaces.
fn printable_json(json: &str) -> String {
    let escape = |character: char| match character {
        '\n' => "\n".to_owned(),
        character if steers_a_terminal(character) => format!("\\u{:04x}", u32::from(character)),
        character => character.into(),
    };
    json.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_lines_are_lines() {
        assert_eq!(printable_lines("a\n  b\nc", "\n  "), "a\n  b\\nc");
    }

    #[test]
    fn no_cell_steers_a_terminal() {
        let hostile = "ev\u{1b}]0;pwn\u{7}il\n\u{202e}";
        let several = format!("both:\n  {hostile}\n  good");
        let mut rows = table(&[("Path", Align::Left), ("Notes", Align::Left)]);
        rows.add_row(["direct", hostile]);
        rows.add_row(["mmap", &several]);
        assert_eq!(rows.lines().count(), 2 + 1 + 3, "a list has lines, a name has none");
        for table in [rows, facts([("Note", hostile.to_owned())])] {
            let shown = table.lines().collect::<Vec<_>>().join("\n");
            assert!(shown.contains("ev\\u{1b}]0;pwn\\u{7}il\\n\\u{202e}"), "{shown:?}");
        }
    }

    #[test]
    fn json_stays_json() {
        assert_eq!(printable_json("{\n \"a\u{9b}\": \"é\"\n}"), "{\n \"a\\u009b\": \"é\"\n}");
    }
}
