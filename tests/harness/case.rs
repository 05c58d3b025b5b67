//! The form of golden files: headers, input, expected lines.

/// Line that separates the cases of a file.
const SEPARATOR: &str = ";----";

/// One case, without its expected lines.
pub(crate) struct Case {
    /// The prose and `;!` lines it starts with.
    head: Vec<String>,
    /// The input, without `;=` and `;~` lines.
    pub(crate) input: Vec<String>,
    /// The `;=` and `;~` lines, as they are in the file.
    pub(crate) expected: Vec<String>,
}

/// Cases of a file.
pub(crate) fn split(text: &str) -> Result<Vec<Case>, String> {
    text.split(&format!("{SEPARATOR}\n")).map(Case::parse).collect()
}

/// The file of rendered cases.
pub(crate) fn join(cases: &[String]) -> String {
    cases.join(&format!("{SEPARATOR}\n"))
}

fn is_expected(line: &str) -> bool {
    line.starts_with(";=") || line.starts_with(";~")
}

impl Case {
    fn parse(text: &str) -> Result<Case, String> {
        let (expected, rest): (Vec<&str>, Vec<&str>) = text.lines().partition(|l| is_expected(l));
        let body = rest.iter().position(|l| !l.starts_with(';')).unwrap_or(rest.len());
        let lines = |part: &[&str]| part.iter().map(|l| (*l).to_string()).collect::<Vec<String>>();
        let mut input = lines(&rest[body..]);
        while input.last().is_some_and(String::is_empty) {
            input.pop();
        }
        let case = Case { head: lines(&rest[..body]), input, expected: lines(&expected) };
        if !case.sentence().ends_with('.') {
            return Err("a case starts with a sentence, `; It shows this.`".into());
        }
        let known = ["test", "pass", "device", "stats", "model", "options", "budget"];
        for line in case.head.iter().filter_map(|l| l.strip_prefix(";!")) {
            let word = line.split_whitespace().next().unwrap_or_default();
            if !known.contains(&word) {
                return Err(format!("unknown header `{word}` (known: {})", known.join(", ")));
            }
        }
        if case.kinds().is_empty() {
            return Err("a case needs a header `;! test ...`".into());
        }
        Ok(case)
    }

    /// The prose that says what the case shows.
    pub(crate) fn sentence(&self) -> String {
        let prose = self.head.iter().filter(|l| !l.starts_with(";!"));
        prose.map(|l| l.trim_start_matches(';').trim()).collect::<Vec<_>>().join(" ")
    }

    /// The value of a `;!` header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.iter().filter_map(|l| l.strip_prefix(";!"));
        lines.map(str::trim).find_map(|l| l.strip_prefix(name)).map(str::trim)
    }

    /// The kinds of test that the case is run as.
    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.header("test").unwrap_or_default().split_whitespace().collect()
    }

    /// The input as one text.
    pub(crate) fn text(&self) -> String {
        self.input.iter().map(|l| format!("{l}\n")).collect()
    }

    /// The case with the given lines in the place of its input, and expected lines after it.
    pub(crate) fn render(&self, body: &[String], expected: &[String]) -> String {
        let expected = expected.iter().map(|l| format!(";= {l}").trim_end().to_string());
        let body = body.iter().cloned();
        self.head.iter().cloned().chain(body).chain(expected).map(|l| l + "\n").collect()
    }
}
