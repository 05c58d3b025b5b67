//! Data of an input: the units of one or more files, or of a pipe.
//!
//! A unit is a slice, a sample, or a window of tokens. Files are read in pieces: memory does not grow with
//! them.

use std::{
    fs::{File, Metadata},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use memc_ir::{DType, TensorType};

use super::npy::{self, Form};
use super::pipe::{self, Pipe};
use super::source::{InputSource, TokenType};
use crate::Error;

/// Units in the order of the files.
#[derive(Debug)]
pub(super) struct Array {
    parts: Vec<Part>,
    /// A pipe instead of files, and the unit that comes next.
    stream: Option<(Pipe, u64)>,
    /// Number of the open file.
    open: Option<(usize, File)>,
    dtype: DType,
    /// Type of the numbers in a token file.
    tokens: Option<TokenType>,
    /// Bytes of a unit as it is fed, and as it is stored; the distance of stored units.
    pub(super) unit_bytes: u64,
    stored_bytes: u64,
    pub(super) units: u64,
    /// Units that a micro-step takes.
    pub(super) batch: u64,
    /// Whether it has the input's own shape.
    pub(super) is_whole: bool,
}

/// Units in one file.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    start: u64,
    units: u64,
}

fn fail(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Data(format!("{}: {what}", path.display()))
}

impl Array {
    /// Opens the data of `input`, of type `ty`, and checks what headers and lengths tell.
    pub(super) fn open(source: &InputSource, input: &str, ty: &TensorType) -> Result<Array, Error> {
        match source {
            InputSource::Stdin => {
                Array::stream(Path::new("standard input"), || Ok(std::io::stdin()), input, ty)
            }
            InputSource::Tokens { path, ty: tokens, skip } => Array::tokens(path, *tokens, *skip, input, ty),
            InputSource::Path(path) => {
                let metadata = path.metadata().map_err(|e| Error::io(path, e))?;
                if metadata.is_dir() {
                    return Array::folder(path, input, ty);
                }
                if !metadata.is_file() {
                    let own = path.clone();
                    return Array::stream(path, move || File::open(own), input, ty);
                }
                let (form, part) = part(path, &metadata, input, ty)?;
                Ok(Array::of(form, vec![part], ty))
            }
        }
    }

    fn of(form: Form, parts: Vec<Part>, ty: &TensorType) -> Array {
        let batch = match form {
            Form::Samples(_) => ty.shape.first().copied().unwrap_or(1).max(1),
            Form::Whole | Form::Slices(_) => 1,
        };
        let unit_bytes = ty.bytes() / batch;
        Array {
            units: parts.iter().map(|part| part.units).fold(0, u64::saturating_add),
            parts,
            stream: None,
            open: None,
            dtype: ty.dtype,
            tokens: None,
            unit_bytes,
            stored_bytes: unit_bytes,
            batch,
            is_whole: form == Form::Whole,
        }
    }

    /// The arrays of a folder, by name, one after another.
    fn folder(path: &Path, input: &str, ty: &TensorType) -> Result<Array, Error> {
        let mut found: Option<Form> = None;
        let mut parts = Vec::new();
        for file in files(path)? {
            let metadata = file.metadata().map_err(|e| Error::io(&file, e))?;
            let (form, part) = part(&file, &metadata, input, ty)?;
            let alike =
                found.is_none_or(|known| std::mem::discriminant(&known) == std::mem::discriminant(&form));
            if form == Form::Whole || !alike {
                return Err(fail(
                    &file,
                    "the arrays of a folder must all hold samples, or all hold one slice for each step",
                ));
            }
            found = Some(form);
            parts.push(part);
        }
        Ok(Array::of(found.unwrap_or(Form::Slices(0)), parts, ty))
    }

    /// Windows of tokens: as many as the input's last axis is long, one behind the other.
    fn tokens(
        path: &Path,
        tokens: TokenType,
        skip: u64,
        input: &str,
        ty: &TensorType,
    ) -> Result<Array, Error> {
        let metadata = path.metadata().map_err(|e| Error::io(path, e))?;
        let (Some(&length), DType::I32 | DType::I64) = (ty.shape.last(), ty.dtype) else {
            return Err(fail(path, format!("tokens do not feed input `{input}`, which is {ty}")));
        };
        if !metadata.is_file() || length == 0 {
            return Err(fail(path, "tokens are read from an ordinary file"));
        }
        if metadata.len() % tokens.bytes() != 0 {
            return Err(fail(
                path,
                format!(
                    "its {} bytes are no whole number of tokens of {} bytes",
                    metadata.len(),
                    tokens.bytes()
                ),
            ));
        }
        let count = metadata.len() / tokens.bytes();
        // The same windows for inputs and for labels, which begin one token later: the last token is a label.
        let usable = count.saturating_sub(skip.max(1));
        let units = usable / length;
        let batch = ty.numel() / length;
        if units < batch {
            return Err(fail(
                path,
                format!(
                    "{usable} of its {count} tokens begin windows, and a batch takes {batch} windows of \
                     {length}; give more tokens"
                ),
            ));
        }
        let unit_bytes = length.saturating_mul(ty.dtype.bytes());
        Ok(Array {
            parts: vec![Part { path: path.to_owned(), start: skip.saturating_mul(tokens.bytes()), units }],
            stream: None,
            open: None,
            dtype: ty.dtype,
            tokens: Some(tokens),
            unit_bytes,
            stored_bytes: length.saturating_mul(tokens.bytes()),
            units,
            batch,
            is_whole: false,
        })
    }

    fn stream<R: Read>(
        path: &Path,
        open: impl FnOnce() -> std::io::Result<R> + Send + 'static,
        input: &str,
        ty: &TensorType,
    ) -> Result<Array, Error> {
        let io = |e| pipe::failed(path, e);
        let mut reader = Pipe::open(open).map_err(io)?;
        let mut head = vec![0; npy::PREFIX];
        reader.read_exact(&mut head).map_err(io)?;
        let bytes = npy::header_bytes(&head).and_then(|n| usize::try_from(n).ok());
        if let Some(bytes) = bytes.filter(|&n| n > head.len()) {
            head.resize(bytes, 0);
            if let Some(rest) = head.get_mut(npy::PREFIX..) {
                reader.read_exact(rest).map_err(io)?;
            }
        }
        let layout =
            npy::layout(&head, ty).map_err(|what| fail(path, format!("input `{input}` is {ty}: {what}")))?;
        let units = match layout.form {
            Form::Whole => 1,
            Form::Slices(n) | Form::Samples(n) => n,
        };
        let part = Part { path: path.to_owned(), start: layout.start, units };
        let mut array = Array::of(layout.form, vec![part], ty);
        array.stream = Some((reader, 0));
        Ok(array)
    }

    /// Whether it can be read once only, in order.
    pub(super) fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// The file of the first unit, for messages.
    pub(super) fn path(&self) -> &Path {
        self.parts.first().map_or(Path::new(""), |part| part.path.as_path())
    }

    /// Reads consecutive units, as many as `out` has room for.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Data`] for a boolean that is neither 0 nor 1.
    pub(super) fn read(&mut self, first: u64, out: &mut [u8]) -> Result<(), Error> {
        let unit = usize::try_from(self.unit_bytes).unwrap_or(usize::MAX).max(1);
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let (part, within) = self.place(at)?;
            let left = self.parts.get(part).map_or(0, |p| p.units - within);
            let most = usize::try_from(left).unwrap_or(usize::MAX).saturating_mul(unit);
            let length = rest.len().min(most).max(1);
            let (now, later) = rest.split_at_mut(length.min(rest.len()));
            self.read_part(part, within, now)?;
            at = at.saturating_add((length / unit) as u64);
            rest = later;
        }
        Ok(())
    }

    /// The file of unit `unit`, and its number there.
    fn place(&self, unit: u64) -> Result<(usize, u64), Error> {
        let mut within = unit;
        for (i, part) in self.parts.iter().enumerate() {
            if within < part.units {
                return Ok((i, within));
            }
            within -= part.units;
        }
        Err(fail(self.path(), format!("there is no slice {unit}; it has {}", self.units)))
    }

    fn read_part(&mut self, part: usize, within: u64, out: &mut [u8]) -> Result<(), Error> {
        let Some(Part { path, start, .. }) = self.parts.get(part) else { return Ok(()) };
        let io = |e| Error::io(path, e);
        if let Some((reader, next)) = &mut self.stream {
            if *next != within {
                return Err(fail(path, "a pipe cannot be read twice, or out of order"));
            }
            reader.read_exact(out).map_err(|e| pipe::failed(path, e))?;
            *next = within.saturating_add(out.len() as u64 / self.unit_bytes.max(1));
        } else {
            if self.open.as_ref().is_none_or(|(open, _)| *open != part) {
                self.open = Some((part, File::open(path).map_err(io)?));
            }
            let Some((_, file)) = &mut self.open else { return Ok(()) };
            let at = within.saturating_mul(self.stored_bytes).saturating_add(*start);
            file.seek(SeekFrom::Start(at)).map_err(io)?;
            match self.tokens {
                None => file.read_exact(out).map_err(io)?,
                Some(tokens) => {
                    let numbers = out.len() as u64 / self.dtype.bytes();
                    let mut stored = vec![0; usize::try_from(numbers * tokens.bytes()).unwrap_or(0)];
                    file.read_exact(&mut stored).map_err(io)?;
                    tokens.convert(&stored, self.dtype, out).map_err(|(n, token)| {
                        let n = n.saturating_add(at / tokens.bytes());
                        fail(path, format!("token {n} is {token}, which an input of 32 bits does not hold"))
                    })?;
                }
            }
        }
        if self.dtype == DType::Bool && out.iter().any(|&byte| byte > 1) {
            return Err(fail(path, format!("slice {within}: a boolean is neither 0 nor 1")));
        }
        Ok(())
    }
}

/// The arrays of a folder in the order of their names, of which it has at least one; or the file itself.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let io = |e| Error::io(path, e);
    if !path.metadata().map_err(io)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(io)? {
        let file = entry.map_err(io)?.path();
        if file.extension().is_some_and(|e| e == "npy") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() { Err(fail(path, "the folder has no .npy files")) } else { Ok(files) }
}

/// An array in an ordinary file.
fn part(path: &Path, metadata: &Metadata, input: &str, ty: &TensorType) -> Result<(Form, Part), Error> {
    let io = |e| Error::io(path, e);
    let mut head = Vec::new();
    File::open(path).map_err(io)?.take(npy::HEADER_BYTES).read_to_end(&mut head).map_err(io)?;
    let layout =
        npy::layout(&head, ty).map_err(|what| fail(path, format!("input `{input}` is {ty}: {what}")))?;
    let (units, bytes) = match layout.form {
        Form::Whole => (1, Some(ty.bytes())),
        Form::Slices(n) => (n, ty.bytes().checked_mul(n)),
        Form::Samples(n) => (n, (ty.bytes() / ty.shape.first().copied().unwrap_or(1).max(1)).checked_mul(n)),
    };
    if bytes.and_then(|bytes| bytes.checked_add(layout.start)) != Some(metadata.len()) {
        return Err(fail(
            path,
            format!("it has {} bytes, which is not what its header says; copy it again", metadata.len()),
        ));
    }
    Ok((layout.form, Part { path: path.to_owned(), start: layout.start, units }))
}
