//! JSON as NVIDIA writes it: with comments, and commas after the last element.

/// `text` without comments (`// ...` and `/* ... */`) and without commas before a closing bracket. Strings stay as
/// they are. Line breaks stay too, so that an error's line is the file's.
pub(super) fn strip(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('"', _) => {
                plain.push('"');
                while let Some(inside) = characters.next() {
                    plain.push(inside);
                    match inside {
                        '\\' => plain.extend(characters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => while characters.next_if(|next| *next != '\n').is_some() {},
            ('/', Some('*')) => {
                characters.next();
                let mut last = ' ';
                for inside in characters.by_ref() {
                    if inside == '\n' {
                        plain.push('\n');
                    }
                    if last == '*' && inside == '/' {
                        break;
                    }
                    last = inside;
                }
            }
            (']' | '}', _) => {
                let end = plain.trim_end().len();
                if plain[..end].ends_with(',') {
                    plain.remove(end - 1);
                }
                plain.push(character);
            }
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comments_go_and_strings_stay() {
        for (text, plain) in [
            ("{} // end", "{} "),
            ("{\n// a\n\"b\": 1 /* c\nd */}", "{\n\n\"b\": 1 \n}"),
            (r#"{"a": "// not \" a comment /* */"}"#, r#"{"a": "// not \" a comment /* */"}"#),
            ("[1, 2, // two\n]", "[1, 2 \n]"),
            ("/* never closed", ""),
            ("\"never closed // x", "\"never closed // x"),
            ("1 / 2", "1 / 2"),
        ] {
            assert_eq!(strip(text), plain, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn plain_json_means_the_same_after(names in proptest::collection::vec(".*", 0..5), number: i64) {
            let json = serde_json::json!({ "names": names, "number": number, "empty": [], "none": {} });
            let after: serde_json::Value = serde_json::from_str(&strip(&json.to_string())).unwrap();
            prop_assert_eq!(after, json);
        }

        #[test]
        fn any_text_is_a_text(text in ".*") {
            strip(&text);
        }
    }
}
