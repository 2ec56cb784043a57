//! Text out of files, fit for messages: whoever wrote a name must not write on the reader's terminal.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// `text` with its control characters escaped, which could move the cursor, recolour the screen or forge a line, and those
/// that turn the direction of what follows.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(steers_a_terminal) {
        return Cow::Borrowed(text);
    }
    let escape = |character: char| -> String {
        if steers_a_terminal(character) { character.escape_default().collect() } else { character.into() }
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Whether a character could do to a terminal more than stand there.
pub fn steers_a_terminal(character: char) -> bool {
    let turns = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || character.is_control()
}

/// Shows a name that a file gave, or the beginning of a long one: a message need not have a megabyte.
pub(crate) struct Name<'a>(pub(crate) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 200;
        formatter.write_str(&beginning(self.0, MOST))
    }
}

/// Shows a path, of which a file may have given a part: beginning and end of a long one, by which files are told apart.
pub(crate) struct Shown<'a>(pub(crate) &'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BEGINNING: usize = 500;
        const END: usize = 250;
        let text = self.0.to_string_lossy();
        match text.char_indices().nth_back(END - 1) {
            Some((end, _)) if text.chars().nth(BEGINNING + END).is_some() => {
                write!(formatter, "{}{}", beginning(&text, BEGINNING), printable(&text[end..]))
            }
            _ => formatter.write_str(&printable(&text)),
        }
    }
}

/// Items on one line: all, or, of many, how many more there are.
pub(crate) fn list(items: impl IntoIterator<Item = impl fmt::Display>, separator: &str) -> String {
    const MOST: usize = 20;
    let mut items = items.into_iter();
    let listed = items.by_ref().take(MOST).map(|item| item.to_string()).collect::<Vec<_>>().join(separator);
    match items.count() {
        0 => listed,
        more => format!("{listed}{separator}and {more} more"),
    }
}

/// The words of a parser, which may quote the file.
pub(crate) fn words(error: &impl fmt::Display) -> String {
    const MOST: usize = 1000;
    beginning(&error.to_string(), MOST)
}

fn beginning(text: &str, most: usize) -> String {
    let end = text.char_indices().nth(most).map(|(at, _)| at);
    let shown = printable(&text[..end.unwrap_or(text.len())]);
    if end.is_some() { format!("{shown}…") } else { shown.into_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_steer_a_terminal_is_escaped() {
        assert_eq!(printable("model.layers.0.weight"), "model.layers.0.weight");
        assert_eq!(printable("größe, 大きさ"), "größe, 大きさ");
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{9b}"), "a\\u{1b}[2Jb\\nc\\u{9b}");
        assert_eq!(printable("a\u{202e}b\u{2066}"), "a\\u{202e}b\\u{2066}");
    }

    #[test]
    fn of_a_long_name_the_beginning_is_shown() {
        assert_eq!(Name("short").to_string(), "short");
        let shown = Name(&"é\u{7}".repeat(100_000)).to_string();
        assert!(shown.starts_with("é\\u{7}é") && shown.ends_with('…') && shown.len() < 1000, "{shown}");
    }

    #[test]
    fn of_a_long_path_beginning_and_end_are_shown() {
        let path = |text: &str| Shown(Path::new(text)).to_string();
        assert_eq!(path("a/b\n  c"), "a/b\\n  c");
        let longest = "é".repeat(750);
        assert_eq!(path(&longest), longest);
        let shown = path(&format!("begin{}end", "x/".repeat(1_000_000)));
        assert!(shown.starts_with("beginx/") && shown.contains("…") && shown.ends_with("/end"), "{shown}");
        assert_eq!(shown.chars().count(), 751);
    }

    #[test]
    fn of_many_items_it_is_said_how_many_there_are() {
        assert_eq!(list([1, 2], "; "), "1; 2");
        assert!(list(0..20, ", ").ends_with("18, 19"));
        assert!(list(0..1000, ", ").ends_with("18, 19, and 980 more"));
        assert_eq!(list([0; 0], ", "), "");
    }
}
