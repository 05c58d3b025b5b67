//! JSON whose objects have every key once.
//!
//! `serde_json` keeps the last of several values of a key without an error. Values are not interpreted here.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A text that is no JSON, or an object with a key twice.
#[derive(Debug)]
pub struct NotJson(serde_json::Error);

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.0.is_data() { "" } else { "not JSON: " };
        write!(f, "{prefix}{}", self.0)
    }
}

impl std::error::Error for NotJson {}

/// Reads one JSON value; errors name the line, and the key that is there twice.
pub fn value(text: &str) -> Result<Value, NotJson> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = Once.deserialize(&mut reader).and_then(|v| reader.end().map(|()| v));
    read.map_err(NotJson)
}

/// Reads a value without repeated keys.
struct Once;

impl<'de> DeserializeSeed<'de> for Once {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Once {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(Once)? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if out.contains_key(&key) {
                return Err(A::Error::custom(format_args!("one object has `{key}` twice")));
            }
            let value = entries.next_value_seed(Once)?;
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that the library reads are read alike; texts that it refuses are refused.
    #[test]
    fn other_json_is_read_as_the_library_reads_it() {
        let texts = [
            r#"{"a": [1, -2, 3.5, 1e300, 18446744073709551615],
                "b": {"a": null, "ü": "\u00fc\n"}, "c": [[], {}, true]}"#,
            "[{\"a\": 1}, {\"a\": 1}]",
            " 7 ",
            "7 7",
            "{\"a\": }",
            "",
        ];
        for text in texts {
            assert_eq!(value(text).ok(), serde_json::from_str::<Value>(text).ok(), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(value(&deep).is_err_and(|e| e.to_string().contains("recursion limit")));
    }

    #[test]
    fn a_key_that_is_there_twice_is_named_with_its_line() {
        let said = value("{\"a\": 1,\n \"b\": [{\"c\": 1, \"d\": 2, \"c\": 1}]}");
        assert!(said.is_err_and(|e| e.to_string().contains("`c` twice at line 2")));
    }
}
