//! Kinds of files, by their first bytes.

/// Kind of a file that a reader may be given in the place of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A plan that memc wrote.
    Plan,
    /// An archive of NumPy (`.npz`) or PyTorch, or the pickle that old versions of PyTorch wrote.
    Archive,
    /// A NumPy array (`.npy`).
    Array,
    /// A safetensors file.
    Safetensors,
    /// A checkpoint of ONNX Runtime.
    OrtCheckpoint,
}

impl FileKind {
    /// The kind of the file that begins with `head`, of which nine bytes tell all; `None` for any other.
    pub fn of(head: &[u8]) -> Option<FileKind> {
        match head {
            _ if head.starts_with(b"MEMCPLAN") => Some(FileKind::Plan),
            _ if head.starts_with(b"PK\x03\x04") || head.starts_with(b"\x80\x02") => Some(FileKind::Archive),
            _ if head.starts_with(b"\x93NUMPY") => Some(FileKind::Array),
            // File identifier of a flatbuffer.
            [_, _, _, _, b'O', b'D', b'T', b'C', ..] => Some(FileKind::OrtCheckpoint),
            // Length of the header, below 4 GiB, and its first byte.
            [_, _, _, _, 0, 0, 0, 0, b'{', ..] => Some(FileKind::Safetensors),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind is told by nine bytes, and a model is none of them.
    #[test]
    fn kinds_by_first_bytes() {
        for (head, kind) in [
            (b"MEMCPLAN\x01".as_slice(), Some(FileKind::Plan)),
            (b"PK\x03\x04....a", Some(FileKind::Archive)),
            (b"\x80\x02}q\x00(X\x06\x00", Some(FileKind::Archive)),
            (b"\x93NUMPY\x01\x00v", Some(FileKind::Array)),
            (b"\x10\x00\x00\x00ODTC\x00", Some(FileKind::OrtCheckpoint)),
            (b"\x80\x01\x00\x00\x00\x00\x00\x00{", Some(FileKind::Safetensors)),
            (b"\x08\x08\x12\x07pytorch", None),
            (b"", None),
        ] {
            assert_eq!(FileKind::of(head), kind, "{head:?}");
        }
    }
}
