//! What of one file is unsafe, and where it does not say why it is sound.

use super::words::{Piece, pieces};

/// How often each thing was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// `unsafe {`: whoever wrote it vouches for what is in it. Blocks of foreign functions too.
    pub(super) blocks: usize,
    /// `unsafe fn` that has a body or is a trait's: callers vouch.
    pub(super) functions: usize,
    /// `unsafe impl` and `unsafe trait`.
    pub(super) implementations: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.functions += other.functions;
        self.implementations += other.implementations;
    }
}

/// What a file holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) counts: Counts,
    /// Lines, and what is missing there.
    pub(super) faults: Vec<(usize, &'static str)>,
}

/// Lines that may stand between the end of a `SAFETY:` and what it speaks of: a statement's beginning, attributes.
const NEAR: usize = 6;

/// Reads one file.
pub(super) fn scan(text: &str) -> Scan {
    let pieces = pieces(text);
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<(usize, &str)> = pieces
        .iter()
        .filter_map(|(line, piece)| match piece {
            Piece::Word(word) => Some((*line, *word)),
            Piece::Comment(_) => None,
        })
        .collect();
    // Where all functions of a file ask the same, its beginning says so once.
    let documented_at_once =
        lines.iter().take_while(|line| line.starts_with("//!")).any(|line| line.contains("# Safety"));
    let mut reasons = Reasons::of(&pieces);
    let mut scan = Scan::default();
    for (at, &(line, word)) in code.iter().enumerate() {
        if word != "unsafe" {
            continue;
        }
        let mut after = code[at + 1..].iter().map(|(_, word)| *word);
        match after.next() {
            Some("{") => {
                scan.counts.blocks += 1;
                if !reasons.take(line) {
                    scan.faults.push((line, "an unsafe block without a `// SAFETY:` of its own"));
                }
            }
            Some("impl") => {
                scan.counts.implementations += 1;
                if !reasons.take(line) {
                    scan.faults.push((line, "an unsafe implementation without a `// SAFETY:` of its own"));
                }
            }
            Some("trait") => {
                scan.counts.implementations += 1;
                if !documented(&lines, line) {
                    scan.faults.push((line, "an unsafe trait without a `# Safety` section"));
                }
            }
            Some(next @ ("fn" | "extern")) => {
                let rest: Vec<&str> = after.take(3).collect();
                match (next, rest.as_slice()) {
                    // A type of pointers.
                    ("fn", ["(", ..]) | ("extern", ["\"\"", "fn", "("]) => {}
                    ("extern", ["{", ..] | ["\"\"", "{", ..]) => {
                        scan.counts.blocks += 1;
                        if !reasons.take(line) {
                            scan.faults.push((line, "foreign functions without a `// SAFETY:` of their own"));
                        }
                    }
                    _ => {
                        scan.counts.functions += 1;
                        if !documented_at_once && !documented(&lines, line) && !of_a_trait(&lines, line) {
                            scan.faults.push((line, "an unsafe function without a `# Safety` section"));
                        }
                    }
                }
            }
            // An attribute, such as `unsafe(no_mangle)`, or a word in the pattern of a macro.
            _ => {}
        }
    }
    scan
}

/// The `SAFETY:` comments of a file, each by the last line of its comment; each counts once.
struct Reasons(Vec<usize>);

impl Reasons {
    fn of(pieces: &[(usize, Piece<'_>)]) -> Self {
        let mut ends: Vec<usize> = Vec::new();
        // A comment that goes on after one that gives a reason, on the next line, is part of it.
        let mut goes_on = false;
        for (line, piece) in pieces {
            match piece {
                Piece::Comment(comment) if comment.contains("SAFETY:") => {
                    ends.push(*line);
                    goes_on = true;
                }
                Piece::Comment(_) if goes_on && ends.last().is_some_and(|end| end + 1 == *line) => {
                    ends.pop();
                    ends.push(*line);
                }
                _ => goes_on = false,
            }
        }
        Self(ends)
    }

    /// Takes the reason that stands nearest before `line`, if one is near.
    fn take(&mut self, line: usize) -> bool {
        let nearest = self.0.iter().rposition(|end| *end <= line && line - end <= NEAR);
        nearest.map(|at| self.0.remove(at)).is_some()
    }
}

/// Whether the comment right above `line`, attributes aside, has a section on safety.
fn documented(lines: &[&str], line: usize) -> bool {
    let above = lines[..line - 1].iter().rev().map(|line| line.trim_start());
    let mut about = above.take_while(|line| line.starts_with("//") || line.starts_with('#'));
    about.any(|line| line.contains("# Safety"))
}

/// Whether the item that encloses `line` implements a trait, whose section then counts.
fn of_a_trait(lines: &[&str], line: usize) -> bool {
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let own = lines.get(line - 1).map_or(0, |line| indentation(line));
    let outer =
        lines[..line - 1].iter().rev().find(|line| !line.trim().is_empty() && indentation(line) < own);
    outer.is_some_and(|line| {
        let line = line.trim_start();
        (line.starts_with("impl") || line.starts_with("unsafe impl")) && line.contains(" for ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> ([usize; 3], usize) {
        let Scan { counts: Counts { blocks, functions, implementations }, faults } = scan(text);
        ([blocks, functions, implementations], faults.len())
    }

    #[test]
    fn each_block_needs_a_reason_of_its_own() {
        assert_eq!(of("// SAFETY: so.\nunsafe { f() }"), ([1, 0, 0], 0));
        assert_eq!(of("// SAFETY: so,\n// and so.\nlet x =\n    unsafe { f() };"), ([1, 0, 0], 0));
        assert_eq!(of("unsafe { f() }"), ([1, 0, 0], 1));
        assert_eq!(of("// SAFETY: so.\nunsafe { f() }\nunsafe { g() }"), ([2, 0, 0], 1));
        assert_eq!(of(&format!("// SAFETY: so.\n{}unsafe {{ f() }}", "x;\n".repeat(20))), ([1, 0, 0], 1));
        assert_eq!(of("// It is safe.\nunsafe { f() }"), ([1, 0, 0], 1));
    }

    #[test]
    fn functions_and_traits_say_what_they_ask() {
        assert_eq!(of("/// # Safety\n/// - x.\n#[inline]\npub unsafe fn f() {}"), ([0, 1, 0], 0));
        assert_eq!(of("/// Does.\nunsafe fn f() {}"), ([0, 1, 0], 1));
        assert_eq!(of("unsafe extern \"C\" fn f() {}"), ([0, 1, 0], 1));
        assert_eq!(of("// SAFETY: x.\nunsafe impl A for B {\n    unsafe fn f() {}\n}"), ([0, 1, 1], 0));
        assert_eq!(of("impl B {\n    unsafe fn f() {}\n}"), ([0, 1, 0], 1));
        assert_eq!(
            of("//! All.\n//!\n//! # Safety\n//! - x.\n\nunsafe fn f() {}\nunsafe fn g() {}"),
            ([0, 2, 0], 0)
        );
        assert_eq!(of("/// # Safety\n/// - x.\npub unsafe trait T {}"), ([0, 0, 1], 0));
        assert_eq!(of("unsafe trait T {}\nunsafe impl T for u8 {}"), ([0, 0, 2], 2));
    }

    #[test]
    fn what_asks_nothing_of_anybody_does_not_count() {
        for text in [
            "type F = unsafe fn(u8);",
            "x: unsafe extern \"C\" fn(u8) -> u8,",
            "#[unsafe(no_mangle)] extern \"C\" fn f() {}",
            "// unsafe { }",
            "let x = \"unsafe {\";",
            "#![deny(unsafe_op_in_unsafe_fn)]",
        ] {
            assert_eq!(of(text), ([0; 3], 0), "{text}");
        }
        assert_eq!(of("unsafe extern \"C\" {\n    fn f();\n}"), ([1, 0, 0], 1));
    }
}
