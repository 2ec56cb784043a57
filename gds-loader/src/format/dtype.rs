//! Element types: every one that safetensors 0.8 knows, the sub-byte ones included.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// The type of a tensor's elements, spelled as in the file.
///
/// Its serde form is the format's name, as in `"BF16"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
#[allow(non_camel_case_types, reason = "the variants are the names the format gives them")]
pub enum Dtype {
    /// A boolean in one byte.
    BOOL,
    /// 4-bit float (two elements a byte).
    F4,
    /// 6-bit float, 2 exponent and 3 mantissa bits (four elements in three bytes).
    F6_E2M3,
    /// 6-bit float, 3 exponent and 2 mantissa bits (four elements in three bytes).
    F6_E3M2,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// 8-bit float, 5 exponent and 2 mantissa bits.
    F8_E5M2,
    /// 8-bit float, 4 exponent and 3 mantissa bits.
    F8_E4M3,
    /// 8-bit power of two, the scale of the microscaling formats.
    F8_E8M0,
    /// [`Dtype::F8_E4M3`] without infinities and negative zero.
    F8_E4M3FNUZ,
    /// [`Dtype::F8_E5M2`] without infinities and negative zero.
    F8_E5M2FNUZ,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE 754 half precision.
    F16,
    /// Brain floating point: the upper half of an F32.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE 754 single precision.
    F32,
    /// Complex number of two F32.
    C64,
    /// IEEE 754 double precision.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

impl Dtype {
    /// Every dtype, in the order of the reference.
    pub const ALL: [Dtype; 22] = [
        Dtype::BOOL,
        Dtype::F4,
        Dtype::F6_E2M3,
        Dtype::F6_E3M2,
        Dtype::U8,
        Dtype::I8,
        Dtype::F8_E5M2,
        Dtype::F8_E4M3,
        Dtype::F8_E8M0,
        Dtype::F8_E4M3FNUZ,
        Dtype::F8_E5M2FNUZ,
        Dtype::I16,
        Dtype::U16,
        Dtype::F16,
        Dtype::BF16,
        Dtype::I32,
        Dtype::U32,
        Dtype::F32,
        Dtype::C64,
        Dtype::F64,
        Dtype::I64,
        Dtype::U64,
    ];

    /// Bits of one element.
    pub const fn bits(self) -> u64 {
        match self {
            Dtype::F4 => 4,
            Dtype::F6_E2M3 | Dtype::F6_E3M2 => 6,
            Dtype::BOOL
            | Dtype::U8
            | Dtype::I8
            | Dtype::F8_E5M2
            | Dtype::F8_E4M3
            | Dtype::F8_E8M0
            | Dtype::F8_E4M3FNUZ
            | Dtype::F8_E5M2FNUZ => 8,
            Dtype::I16 | Dtype::U16 | Dtype::F16 | Dtype::BF16 => 16,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 32,
            Dtype::C64 | Dtype::F64 | Dtype::I64 | Dtype::U64 => 64,
        }
    }

    /// The alignment in bytes that code reading such elements from memory may count on, at least 1.
    ///
    /// The size of the element, and 1 for elements smaller than a byte. C64 is aligned to the pair (8) and not to its F32
    /// halves, because CUDA's `cuComplex` and PyTorch's `complex64` are.
    pub const fn alignment(self) -> u64 {
        let bytes = self.bits() / 8;
        if bytes == 0 { 1 } else { bytes }
    }

    /// The name in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Dtype::BOOL => "BOOL",
            Dtype::F4 => "F4",
            Dtype::F6_E2M3 => "F6_E2M3",
            Dtype::F6_E3M2 => "F6_E3M2",
            Dtype::U8 => "U8",
            Dtype::I8 => "I8",
            Dtype::F8_E5M2 => "F8_E5M2",
            Dtype::F8_E4M3 => "F8_E4M3",
            Dtype::F8_E8M0 => "F8_E8M0",
            Dtype::F8_E4M3FNUZ => "F8_E4M3FNUZ",
            Dtype::F8_E5M2FNUZ => "F8_E5M2FNUZ",
            Dtype::I16 => "I16",
            Dtype::U16 => "U16",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::I32 => "I32",
            Dtype::U32 => "U32",
            Dtype::F32 => "F32",
            Dtype::C64 => "C64",
            Dtype::F64 => "F64",
            Dtype::I64 => "I64",
            Dtype::U64 => "U64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A name that is no dtype of the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no dtype of safetensors; expected one of BOOL, U8, BF16, F32, F8_E4M3 and so on, in upper case"
)]
pub struct UnknownDtype(pub String);

impl FromStr for Dtype {
    type Err = UnknownDtype;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.as_str() == name)
            .ok_or_else(|| UnknownDtype(name.to_owned()))
    }
}

/// As serde's derive would, but that what is no text is called what it is: the derive says of `null` that no value is there.
impl<'de> Deserialize<'de> for Dtype {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DtypeVisitor;

        impl<'de> Visitor<'de> for DtypeVisitor {
            type Value = Dtype;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a dtype, as \"BF16\"")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Dtype, E> {
                name.parse().map_err(E::custom)
            }

            /// The derive, and so the reference, takes `{"BF16": null}` too.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dtype, A::Error> {
                match map.next_entry::<String, ()>()? {
                    Some((name, ())) => self.visit_str(&name),
                    None => Err(A::Error::invalid_length(0, &self)),
                }
            }
        }

        deserializer.deserialize_any(DtypeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_and_names_are_those_of_the_reference() {
        for dtype in Dtype::ALL {
            let json = format!("\"{dtype}\"");
            let reference: safetensors::Dtype = serde_json::from_str(&json).unwrap();
            assert_eq!(dtype.bits(), reference.bitsize() as u64, "{dtype}");
            assert_eq!(dtype.to_string(), reference.to_string());
            assert_eq!(serde_json::to_string(&dtype).unwrap(), json);
            assert_eq!(serde_json::from_str::<Dtype>(&json).unwrap(), dtype);
            assert_eq!(dtype.as_str().parse::<Dtype>().unwrap(), dtype);
        }
    }

    #[test]
    fn the_reference_knows_no_dtype_that_is_missing_here() {
        let refusal = serde_json::from_str::<safetensors::Dtype>("\"nothing\"").unwrap_err().to_string();
        let (_, names) = refusal.split_once("expected one of").unwrap();
        let known = names.split('`').skip(1).step_by(2).count();
        assert_eq!(known, Dtype::ALL.len(), "{refusal}");
    }

    #[test]
    fn alignment_is_a_power_of_two_and_never_zero() {
        for dtype in Dtype::ALL {
            assert!(dtype.alignment().is_power_of_two());
        }
        assert_eq!(Dtype::F4.alignment(), 1);
        assert_eq!(Dtype::F6_E3M2.alignment(), 1);
        assert_eq!(Dtype::BF16.alignment(), 2);
        assert_eq!(Dtype::C64.alignment(), 8);
    }

    #[test]
    fn whatever_json_stands_for_a_dtype_has_the_references_verdict_and_is_called_what_it_is() {
        for (json, found) in [
            ("null", "null"),
            ("1", "integer"),
            ("-0.5", "floating point"),
            ("true", "boolean"),
            ("[]", "sequence"),
            ("[\"F32\"]", "sequence"),
            ("{}", ""),
            ("{\"F32\":null}", ""),
            ("{\"F32\":1}", ""),
            ("{\"f32\":null}", "f32"),
            ("{\"F32\":null,\"F32\":null}", ""),
            ("{\"F32\":null,\"F16\":null}", ""),
            ("\"F\\u00332\"", ""),
            ("\"F128\"", "F128"),
        ] {
            let reference = serde_json::from_str::<safetensors::Dtype>(json);
            match serde_json::from_str::<Dtype>(json) {
                Ok(dtype) => assert_eq!(dtype.to_string(), reference.unwrap().to_string(), "{json}"),
                Err(error) => {
                    assert!(reference.is_err(), "{json}");
                    assert!(error.to_string().contains(found), "{json}: {error}");
                    assert!(!error.to_string().contains("expected value"), "{json}: {error}");
                }
            }
        }
    }

    #[test]
    fn names_are_exact() {
        for name in ["f32", "F32 ", "", "F128", "bf16"] {
            assert_eq!(name.parse::<Dtype>(), Err(UnknownDtype(name.to_owned())));
        }
    }
}
