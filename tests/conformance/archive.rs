//! Reading the archive of node tests that `archive.py` writes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A node test of the standard.
pub(crate) struct Test {
    pub(crate) name: String,
    /// The operator that it is about.
    pub(crate) operator: String,
    /// Reason for leaving its files out of the archive; empty when they are there.
    pub(crate) left_out: String,
    files: BTreeMap<String, Vec<u8>>,
}

impl Test {
    /// The model.
    pub(crate) fn model(&self) -> &[u8] {
        &self.files["model.onnx"]
    }

    /// The serialised tensors of one kind, `input` or `output`, in order.
    pub(crate) fn tensors(&self, kind: &str) -> Vec<&[u8]> {
        let find = |i: usize| self.files.get(&format!("{kind}_{i}.pb")).map(Vec::as_slice);
        (0..).map_while(find).collect()
    }
}

/// The tests of the archive, sorted by name.
pub(crate) fn read(path: &Path) -> Vec<Test> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = zip::ZipArchive::new(file).unwrap();
    let mut entry = |name: &str| {
        let mut bytes = Vec::new();
        archive.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    let (tests, index, data) = (entry("tests.tsv"), entry("index.tsv"), entry("data"));
    let lines = |text: Vec<u8>| -> Vec<Vec<String>> {
        let text = String::from_utf8(text).unwrap();
        text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect()
    };
    let mut files: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for row in lines(index) {
        let [test, file, start, length] = row.try_into().unwrap();
        let (start, length): (usize, usize) = (start.parse().unwrap(), length.parse().unwrap());
        files.entry(test).or_default().insert(file, data[start..start + length].to_vec());
    }
    let test = |row: Vec<String>| {
        let [name, operator, left_out] = row.try_into().unwrap();
        let files = files.remove(&name).unwrap_or_default();
        assert_eq!(files.is_empty(), !left_out.is_empty(), "{name}");
        Test { name, operator, left_out, files }
    };
    lines(tests).into_iter().map(test).collect()
}
