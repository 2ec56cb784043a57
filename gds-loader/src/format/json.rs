//! What serde's derive does not do: refuse repeated keys anywhere, and say which kind of value stood where a string must.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

/// The kind of the JSON value that `text` begins with, judged by how it begins.
pub(super) fn kind_of(text: &[u8]) -> &'static str {
    match text.trim_ascii_start() {
        [b'{', ..] => "an object",
        [b'[', ..] => "an array",
        [b'"', ..] => "a string",
        [b't', b'r', b'u', b'e', ..] | [b'f', b'a', b'l', b's', b'e', ..] => "a boolean",
        [b'n', b'u', b'l', b'l', ..] => "null",
        [b'-' | b'0'..=b'9', ..] => "a number",
        [_, ..] => "no JSON",
        [] => "nothing but blanks",
    }
}

/// A value that should be a string, or the kind of what it is instead.
pub(super) enum Text<'de> {
    Is(Cow<'de, str>),
    Not(&'static str),
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text::Is(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text::Is(Cow::Owned(text.to_owned())))
            }
            fn visit_bool<E: Error>(self, _: bool) -> Result<Text<'de>, E> {
                Ok(Text::Not("a boolean"))
            }
            fn visit_u64<E: Error>(self, _: u64) -> Result<Text<'de>, E> {
                Ok(Text::Not("a number"))
            }
            fn visit_i64<E: Error>(self, _: i64) -> Result<Text<'de>, E> {
                Ok(Text::Not("a number"))
            }
            fn visit_f64<E: Error>(self, _: f64) -> Result<Text<'de>, E> {
                Ok(Text::Not("a number"))
            }
            fn visit_unit<E: Error>(self) -> Result<Text<'de>, E> {
                Ok(Text::Not("null"))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Text<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text::Not("an array"))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::Not("an object"))
            }
        }

        deserializer.deserialize_any(TextVisitor)
    }
}

/// Any value, read and dropped, in which no object may hold a key twice; `repeated` hears of the first that is.
///
/// Unlike serde's `IgnoredAny` it checks numbers and depth as a reader that keeps the value would.
#[derive(Clone, Copy)]
pub(super) struct Skip<'a> {
    pub(super) repeated: &'a dyn Fn(&str),
}

impl<'de> DeserializeSeed<'de> for Skip<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Skip<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any JSON value")
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                (self.repeated)(&key);
                return Err(A::Error::custom(format_args!("the key `{key}` appears twice")));
            }
            keys.insert(key);
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}
