//! Values of options.

use std::{path::PathBuf, str::FromStr};

use crate::{Epochs, InputSource, Pad, Rate};
use memc_ir::{Bytes, ParseError};

/// A size with a binary suffix.
pub(crate) fn host_memory(text: &str) -> Result<u64, ParseError> {
    Bytes::parse(text, "write a size such as 64G").map(|bytes| bytes.0)
}

/// `name=@file` or `name=-`.
#[derive(Clone, Debug)]
pub(crate) struct NamedInput {
    pub(crate) name: String,
    pub(crate) source: InputSource,
}

impl FromStr for NamedInput {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<NamedInput, &'static str> {
        let split = text.strip_suffix("=-").map(|name| (name, "-".to_owned()));
        let split = split.or_else(|| text.rsplit_once("=@").map(|(name, path)| (name, format!("@{path}"))));
        match split.filter(|(name, _)| !name.is_empty()) {
            Some((name, source)) => Ok(NamedInput { name: name.to_owned(), source: source.parse()? }),
            None => Err("expected NAME=@FILE.npy"),
        }
    }
}

/// A rate, for one job or, with an empty name, for all.
pub(crate) fn rate(text: &str) -> Result<(String, Rate), String> {
    let (job, rate) = match text.split_once('/') {
        Some((job, rate)) if !text.starts_with('@') && !job.is_empty() => (job, rate),
        _ => ("", text),
    };
    Ok((job.to_owned(), rate.parse().map_err(|e| format!("{e}"))?))
}

/// Passes over the data, of one job where it is named.
pub(crate) fn epochs(text: &str) -> Result<Epochs, &'static str> {
    let (job, passes) = text.rsplit_once('=').map_or((None, text), |(job, n)| (Some(job.to_owned()), n));
    match passes.parse() {
        Ok(passes @ 1..=0x100_0000_0000) => Ok(Epochs { job, passes }),
        _ => Err("expected a number of passes, at least 1"),
    }
}

/// `NAME=VALUE`.
pub(crate) fn pad(text: &str) -> Result<(String, Pad), String> {
    match text.rsplit_once('=') {
        Some((name, value)) if !name.is_empty() => {
            Ok((name.to_owned(), value.parse().map_err(|error| format!("{error}"))?))
        }
        _ => Err("expected NAME=VALUE, such as input_ids=0".to_owned()),
    }
}

/// `NAME=FILE`.
pub(crate) fn named_file(text: &str) -> Result<(String, PathBuf), &'static str> {
    match text.rsplit_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_owned(), path.into())),
        _ => Err("expected NAME=FILE.npy"),
    }
}
