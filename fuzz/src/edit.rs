//! Text that is changed in a few places: what mutations of raw bytes rarely do to JSON without breaking all of it.

use arbitrary::{Result, Unstructured};

/// What is put in: numbers as somebody might write them, marks of JSON, words of the formats, characters that are escaped.
const TOKENS: [&str; 52] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "8",
    "16",
    "-1",
    "-0",
    "1.0",
    "1e2",
    "1e400",
    "255",
    "4294967296",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    "\"\"",
    "\"a\"",
    "[]",
    "{}",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    " ",
    "\n",
    "\0",
    "/",
    "..",
    "part/",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "\"weight_map\"",
    "\"tensors\"",
    "\"F4\"",
    "\"F6_E2M3\"",
    "\"U8\"",
    "\"F32\"",
    "\u{feff}",
    "é",
    "a.safetensors",
];

/// Puts up to three tokens in the place of a few bytes each.
pub(crate) fn edit(u: &mut Unstructured<'_>, text: &mut Vec<u8>) -> Result<()> {
    for _ in 0..u.int_in_range(0..=3)? {
        let token = u.choose(&TOKENS)?.as_bytes();
        let at = u.int_in_range(0..=text.len())?;
        let end = (at + u.int_in_range(0..=8)?).min(text.len());
        // A part of the text again, such as a key or an entry, or a token.
        if u.ratio(1, 4)? {
            let from = u.int_in_range(0..=text.len())?;
            let to = (from + u.int_in_range(0..=80)?).min(text.len());
            let again = text[from..to].to_vec();
            text.splice(at..end, again);
        } else {
            text.splice(at..end, token.iter().copied());
        }
    }
    Ok(())
}
