//! Rust text taken apart just far enough: the words of its code, and its comments, each with the line it is on.

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A keyword or name, or one character of punctuation.
    Word(&'a str),
    /// A comment of any kind, with its marks.
    Comment(&'a str),
}

/// Every piece with the number of the line that it begins on, from 1. Literals are left out, except that a string is the word
/// `""`, so that `extern "C"` can be told.
pub(super) fn pieces(text: &str) -> Vec<(usize, Piece<'_>)> {
    let mut pieces = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (len, piece) = next(rest, first);
        let (taken, after) = rest.split_at(len);
        match piece {
            Kind::Word => pieces.push((line, Piece::Word(taken))),
            Kind::Comment => pieces.push((line, Piece::Comment(taken))),
            Kind::Text => pieces.push((line, Piece::Word("\"\""))),
            Kind::Nothing => {}
        }
        line += taken.matches('\n').count();
        rest = after;
    }
    pieces
}

enum Kind {
    Word,
    Comment,
    Text,
    Nothing,
}

/// What `rest`, which begins with `first`, begins with, and how long that is.
fn next(rest: &str, first: char) -> (usize, Kind) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment);
    }
    if rest.starts_with("/*") {
        return (block_comment(rest), Kind::Comment);
    }
    if let Some(len) = string(rest) {
        return (len, Kind::Text);
    }
    if first == '\'' {
        return (character_or_lifetime(rest), Kind::Nothing);
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    if is_word(first) {
        return (rest.find(|c| !is_word(c)).unwrap_or(rest.len()), Kind::Word);
    }
    (first.len_utf8(), if first.is_whitespace() { Kind::Nothing } else { Kind::Word })
}

/// The length of a comment in `/*` and `*/`, which nests.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(mark) = rest.get(at..).filter(|rest| !rest.is_empty()) {
        if mark.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if mark.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += mark.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a string of any kind that `rest` begins with.
fn string(rest: &str) -> Option<usize> {
    let prefix = rest.len() - rest.trim_start_matches(['b', 'c']).len();
    let body = rest.get(prefix.min(1)..)?;
    let start = rest.len() - body.len();
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let content = raw.get(hashes..)?.strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let len = content.find(&end).map_or(content.len(), |at| at + end.len());
        return Some(start + 1 + hashes + 1 + len);
    }
    let content = body.strip_prefix('"')?;
    let mut escaped = false;
    let end = content.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    Some(start + 1 + end.map_or(content.len(), |at| at + 1))
}

/// The length of `'a'` or of the `'` of a lifetime.
fn character_or_lifetime(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => {
            // The escaped character may be a quote itself.
            let after = characters.nth(1).map_or(rest.len(), |(at, _)| at);
            rest[after..].find('\'').map_or(rest.len(), |at| after + at + 1).max(after)
        }
        Some((_, _)) => match characters.next() {
            Some((at, '\'')) => at + 1,
            _ => 1,
        },
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let word = |(_, piece)| match piece {
            Piece::Word(word) => Some(word),
            Piece::Comment(_) => None,
        };
        pieces(text).into_iter().filter_map(word).collect()
    }

    #[test]
    fn what_stands_in_text_and_comments_is_no_code() {
        for text in [
            "\"unsafe {\"",
            r#""\" unsafe {""#,
            "r#\"unsafe \" { \"#",
            "b\"unsafe\"",
            "br##\"\"# unsafe\"##",
            "c\"unsafe\"",
        ] {
            assert_eq!(words(text), ["\"\""], "{text}");
        }
        for text in ["// unsafe {", "/* unsafe /* { */ unsafe */", "'{'", r"'\''", r"'\u{41}'", "b'\\n'"] {
            let left: Vec<_> = words(text).into_iter().filter(|word| *word != "b").collect();
            assert_eq!(left, [""; 0], "{text}");
        }
    }

    #[test]
    fn what_is_code_stays() {
        assert_eq!(words("fn f<'a>(x: &'a u8) {}")[..4], ["fn", "f", "<", "a"]);
        assert_eq!(words(r#"unsafe extern "C" {"#), ["unsafe", "extern", "\"\"", "{"]);
        assert_eq!(words("let bright = b; call(r)").len(), 9);
        assert_eq!(pieces("a\n\"x\ny\"\n// c\nb").last(), Some(&(5, Piece::Word("b"))));
    }
}
