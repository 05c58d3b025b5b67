//! Files that reproduce a failed pass: golden headers, then the module as it was before the pass.
//!
//! `memc opt` runs such a file: where the command line names no pass or device, the file's headers do.

use memc_ir::{Module, print};

/// Text of a file that reproduces the failure of `pass`, with its options, on a module.
pub(crate) fn text(pass: &str, device: &str, before: &Module, why: &str) -> String {
    let why = why.lines().next().unwrap_or_default();
    format!("; {pass} fails: {why}\n;! pass {pass}\n;! device {device}\n{}", print(before))
}

/// Value of a header `;! NAME VALUE` above the first line of a module.
pub fn header<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let head = text.lines().take_while(|line| line.starts_with(';'));
    let headers = head.filter_map(|line| line.strip_prefix(";!"));
    headers.map(str::trim).find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::header;

    #[test]
    fn headers_stand_above_the_module() {
        let text = "; A sentence.\n;! pass dce,cse\n;! device toy\nmodule @m graph\n;! stats\n";
        assert_eq!(header(text, "pass"), Some("dce,cse"));
        assert_eq!(header(text, "device"), Some("toy"));
        assert_eq!(header(text, "stats"), None);
        assert_eq!(header(text, "pas"), None);
    }
}
