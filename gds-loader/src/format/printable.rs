//! Text out of files, fit for messages: whoever wrote a name must not write on the reader's terminal.

use std::borrow::Cow;
use std::fmt;

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
}
