//! Files that list the names of a model's parameters.

use std::path::Path;

use glob::Pattern;
use memc_support::FileKind;
use safetensors::SafeTensors;

use crate::error::ImportError;
use crate::initial::read_file;

/// Reads the names of parameters from `path`, as patterns for [`crate::ImportOptions::parameters`]: a JSON
/// array, a safetensors file, whose tensors count, or text with one name a line.
///
/// # Errors
///
/// [`ImportError::Io`], and [`ImportError::Usage`] for any other content.
pub fn read_parameter_names(path: &Path) -> Result<Vec<String>, ImportError> {
    let bytes = read_file(path, u64::MAX)?;
    let bad = |what: &str| ImportError::Usage(format!("--parameters {}: {what}", path.display()));
    if FileKind::of(&bytes) == Some(FileKind::Archive) {
        return Err(bad("it is a file of torch.save, which is a program; write the names as text: \
             open('names.txt', 'w').write('\\n'.join(n for n, p in model.named_parameters() \
             if p.requires_grad))"));
    }
    let names: Vec<String> = if let Ok(file) = SafeTensors::deserialize(&bytes) {
        file.names().into_iter().map(String::from).collect()
    } else {
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| bad("it is neither text, nor a JSON array of names, nor a safetensors file"))?;
        if text.trim_start().starts_with('[') {
            serde_json::from_str(text).map_err(|e| bad(&format!("it is no JSON array of names: {e}")))?
        } else {
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect()
        }
    };
    if names.is_empty() {
        return Err(bad("it has no name"));
    }
    Ok(names.iter().map(|name| Pattern::escape(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The three kinds of file give the same names; what is none of them is refused.
    #[test]
    fn names_are_read_from_text_json_and_safetensors() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("names");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("write");
            read_parameter_names(&path).map_err(|e| e.to_string())
        };
        let names = Ok(vec!["a[[]0[]].weight".to_string(), "b.bias".to_string()]);
        assert_eq!(read(b"a[0].weight\n\n  b.bias\n"), names);
        assert_eq!(read(br#"["a[0].weight", "b.bias"]"#), names);
        let header = br#"{"a[0].weight":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b.bias":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        assert_eq!(
            read(&file).map(|mut n| {
                n.sort();
                n
            }),
            names
        );
        assert!(read(b"PK\x03\x04....archive/data.pkl").expect_err("torch.save").contains("torch.save"));
        assert!(read(b"\n").expect_err("empty").contains("it has no name"));
        assert!(read(b"\xff\xfe\x00").expect_err("binary").contains("neither text"));
    }
}
