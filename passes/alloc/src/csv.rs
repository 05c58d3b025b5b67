//! Instances and allocations as comma-separated values.
//!
//! The format is minimalloc's: a header that names the columns `id`, `lower`, `upper` and `size`, in any
//! order, and one line for each buffer; `[lower, upper)` is its live range. A column `offset` may give the
//! offset of a buffer that has one. Printed allocations have the columns `id,lower,upper,size,offset`. Holes
//! and alignments have no place in it.

use std::collections::BTreeMap;
use std::fmt;

use crate::instance::{Buffer, Instance, InstanceError, MAX_TOTAL_BYTES, Range};

/// A malformed line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CsvError {
    /// Line, from 1.
    pub line: usize,
    /// Name of the faulty column in the header, where there is one.
    pub column: Option<String>,
    /// Description of the fault.
    pub message: String,
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(column) = &self.column {
            write!(f, ", column `{column}`")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for CsvError {}

/// An instance and the names of its buffers.
#[derive(Clone, Debug)]
pub struct Named {
    /// Buffers to allocate.
    pub instance: Instance,
    /// The column `id` of every buffer.
    pub ids: Vec<String>,
}

const COLUMNS: [&str; 5] = ["id", "lower", "upper", "size", "offset"];

/// Reads an instance.
pub fn read(text: &str) -> Result<Named, CsvError> {
    let error = |line: usize, column: Option<&str>, message: String| CsvError {
        line,
        column: column.map(str::to_owned),
        message,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())).filter(|(_, l)| !l.is_empty());
    let Some((first, header)) = lines.next() else {
        return Err(error(1, None, "the file is empty; expected a header id,lower,upper,size".into()));
    };
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    for (i, name) in names.iter().enumerate() {
        if !COLUMNS.contains(name) {
            let hint =
                if name.parse::<u64>().is_ok() { "; the header id,lower,upper,size is missing" } else { "" };
            return Err(error(first, Some(name), format!("unknown column{hint}")));
        }
        if names[..i].contains(name) {
            return Err(error(first, Some(name), "the column is there twice".into()));
        }
    }
    let column = |name: &str| names.iter().position(|n| *n == name);
    let needed =
        |name: &str| column(name).ok_or_else(|| error(first, Some(name), "the column is missing".into()));
    let (id, lower, upper, size) = (needed("id")?, needed("lower")?, needed("upper")?, needed("size")?);
    let offset = column("offset");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let (mut buffers, mut ids, mut at_line) = (Vec::new(), Vec::new(), Vec::new());
    for (line, text) in lines {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        if fields.len() != names.len() {
            let message = format!("{} fields, the header has {}", fields.len(), names.len());
            return Err(error(line, None, message));
        }
        let number = |i: usize| number(fields[i], |message| error(line, Some(names[i]), message));
        let name = fields[id].to_owned();
        if name.is_empty() {
            return Err(error(line, Some("id"), "the name is empty".into()));
        }
        if let Some(before) = seen.insert(name.clone(), line) {
            return Err(error(line, Some("id"), format!("`{name}` is in line {before} already")));
        }
        let range = Range { start: number(lower)?, end: number(upper)? };
        if range.start >= range.end {
            let what = if range.start == range.end { "is where it starts" } else { "is before it starts" };
            let message = format!(
                "the live range [{}, {}) ends at {}, which {what}",
                range.start, range.end, range.end
            );
            return Err(error(line, Some("upper"), message));
        }
        let fixed = match offset {
            Some(i) if !fields[i].is_empty() => Some(number(i)?),
            _ => None,
        };
        buffers.push(Buffer { live: vec![range], bytes: number(size)?, align: 1, offset: fixed });
        ids.push(name);
        at_line.push(line);
    }
    let instance = Instance::new(buffers).map_err(|e| {
        let line = |i: usize| at_line.get(i).copied().unwrap_or(first);
        match e {
            InstanceError::Overlap(i, j) => error(
                line(j),
                Some("offset"),
                format!("it shares bytes with line {} while both live", line(i)),
            ),
            InstanceError::TooLarge(i) => error(
                line(i),
                Some("size"),
                format!("up to here sizes add up to more than {MAX_TOTAL_BYTES}"),
            ),
            e => error(line(e.buffer()), None, e.to_string()),
        }
    })?;
    Ok(Named { instance, ids })
}

/// The number in a field; `error` makes an error of a sentence.
fn number(field: &str, error: impl Fn(String) -> CsvError) -> Result<u64, CsvError> {
    if field.is_empty() {
        return Err(error("the number is missing".into()));
    }
    let digits = field.strip_prefix('-').unwrap_or(field);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(error(format!("`{field}` is not a whole number")));
    }
    if digits.len() < field.len() {
        return Err(error(format!("{field} is negative")));
    }
    digits.parse().map_err(|_| error(format!("{field} is larger than {}", u64::MAX)))
}

/// An allocation with the columns `id,lower,upper,size,offset`. Buffers with holes have a line for each of
/// their live ranges.
pub fn write(named: &Named, offsets: &[u64]) -> String {
    let mut out = String::from("id,lower,upper,size,offset\n");
    for ((id, b), at) in named.ids.iter().zip(named.instance.buffers()).zip(offsets) {
        for r in &b.live {
            out.push_str(&format!("{id},{},{},{},{at}\n", r.start, r.end, b.bytes));
        }
    }
    out
}
