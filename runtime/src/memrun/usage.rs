//! Messages about command lines that name a command which memrun does not have.

use std::ffi::OsString;

use clap::{CommandFactory, Error, Parser, error::ContextKind, error::ErrorKind};

use crate::memrun::cli::Cli;

/// Words that people write beside a plan, and the options that do what they mean.
const WORDS: &[(&str, &str)] = &[
    ("run", ""),
    ("train", ""),
    ("exec", ""),
    ("start", ""),
    ("info", " --plan-info"),
    ("plan-info", " --plan-info"),
    ("show", " --plan-info"),
    ("verify", " --verify"),
    ("trace", " --trace step.json"),
];

/// Commands of memc that take a plan.
const MEMC: &[&str] = &["check", "dump", "diff"];

/// The command line, or the end of the command with what is wrong with it.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Cli {
    let args: Vec<OsString> = args.into_iter().collect();
    let words: Vec<String> = args.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    Cli::try_parse_from(args).unwrap_or_else(|error| match hint(&error, &words) {
        Some(text) => Cli::command().error(ErrorKind::ArgumentConflict, text).exit(),
        None => error.exit(),
    })
}

/// Message about a second argument beside the plan.
fn hint(error: &Error, words: &[String]) -> Option<String> {
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let surplus = error.get(ContextKind::InvalidSubcommand)?.to_string();
    let position = |is: &dyn Fn(&str) -> bool| words.iter().position(|word| is(word));
    let without = |at: usize| {
        let rest = words.iter().enumerate().filter(|(index, _)| *index != at);
        rest.map(|(_, word)| word.as_str()).collect::<Vec<_>>().join(" ")
    };
    let commands = Cli::command();
    let own = |word: &str| commands.find_subcommand(word).is_some();
    if let Some(at) = position(&own) {
        let word = words.get(at)?;
        return Some(format!("`{word}` comes first: memrun {word} {}", without(at)));
    }
    if let Some(at) = position(&|word| MEMC.contains(&word)) {
        let word = words.get(at)?;
        return Some(format!("`{word}` is a command of memc: memc {word} {}", without(at)));
    }
    let options = |word: &str| WORDS.iter().find(|(known, _)| *known == word).map(|(_, options)| *options);
    if let Some(at) = position(&|word| options(word).is_some()) {
        let word = words.get(at)?;
        return Some(format!(
            "memrun has no command `{word}`: write memrun {}{}",
            without(at),
            options(word).unwrap_or_default()
        ));
    }
    Some(format!("memrun takes one plan, and `{surplus}` is one argument more"))
}
