//! Reads ONNX Runtime training checkpoints: one flatbuffer with identifier `ODTC`, version 2.
//!
//! Field numbers are those of the schema `ort_training_checkpoint.fbs` and of table `Tensor` in `ort.fbs`.
//! Every offset is checked before it is followed. Offsets may alias in a flatbuffer, so the bytes copied are
//! counted: together they may not exceed the file.

use memc_ir::Data;

use crate::error::{Fault, ImportError};
use crate::tensor::{Literal, dtype, tensor_type};

/// The file identifier, at byte 4.
pub(crate) const IDENTIFIER: &[u8; 4] = b"ODTC";
const VERSION: i32 = 2;

/// The parts of a checkpoint that a training step needs.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Checkpoint {
    /// Trained parameters.
    pub trainable: Vec<(String, Literal)>,
    /// Parameters that are not trained, and statistics.
    pub frozen: Vec<(String, Literal)>,
    /// Optimizer groups; none in a checkpoint that was never trained.
    pub groups: Vec<Group>,
}

/// One optimizer group.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Group {
    /// Optimizer steps done.
    pub step: i64,
    /// The learning rate to start with.
    pub learning_rate: f32,
    /// Moments by parameter, as `(parameter, moment, content)`.
    pub moments: Vec<(String, String, Literal)>,
}

/// Reads a checkpoint.
pub(crate) fn read(bytes: &Data) -> Result<Checkpoint, ImportError> {
    parse(bytes).map_err(|e| e.damage("damaged ONNX Runtime checkpoint"))
}

fn parse(bytes: &Data) -> Result<Checkpoint, Fault> {
    let mut r = Reader { bytes, budget: bytes.len() };
    if bytes.get(4..8) != Some(IDENTIFIER.as_slice()) {
        return Err("it does not have identifier ODTC".into());
    }
    let root = r.target(0)?;
    let version = r.field(root, 0)?.map_or(Ok(0), |at| r.i32(at))?;
    if version != VERSION {
        return Err(Fault::Bad(format!("it has version {version}, supported is {VERSION}")));
    }
    let mut out = Checkpoint::default();
    if let Some(state) = r.table(root, 1)? {
        for (slot, what) in [(2, "is nominal: it has no values"), (3, "keeps its values in another file")] {
            if let Some(at) = r.field(state, slot)?
                && r.slice(at, 1)? != [0]
            {
                return Err(Fault::Bad(format!("it {what}; save a complete checkpoint")));
            }
        }
        out.trainable = r.tensors(state, 0)?;
        out.frozen = r.tensors(state, 1)?;
    }
    for group in r.tables(root, 2)? {
        out.groups.push(r.group(group)?);
    }
    Ok(out)
}

struct Reader<'a> {
    bytes: &'a Data,
    /// Bytes that may still be copied.
    budget: usize,
}

impl<'a> Reader<'a> {
    fn slice(&self, at: usize, len: usize) -> Result<&'a [u8], Fault> {
        let end = at.checked_add(len);
        end.and_then(|end| self.bytes.get(at..end))
            .ok_or_else(|| format!("byte {at} lies outside the file").into())
    }
    fn word<const N: usize>(&self, at: usize) -> Result<[u8; N], Fault> {
        let mut word = [0; N];
        word.copy_from_slice(self.slice(at, N)?);
        Ok(word)
    }
    fn u16(&self, at: usize) -> Result<u16, Fault> {
        self.word(at).map(u16::from_le_bytes)
    }
    fn u32(&self, at: usize) -> Result<u32, Fault> {
        self.word(at).map(u32::from_le_bytes)
    }
    fn i32(&self, at: usize) -> Result<i32, Fault> {
        self.word(at).map(i32::from_le_bytes)
    }
    fn i64(&self, at: usize) -> Result<i64, Fault> {
        self.word(at).map(i64::from_le_bytes)
    }

    /// Where the relative offset stored at `at` points.
    fn target(&self, at: usize) -> Result<usize, Fault> {
        let to = at.checked_add(self.u32(at)? as usize);
        to.filter(|&t| t < self.bytes.len())
            .ok_or_else(|| format!("the offset at byte {at} leaves the file").into())
    }

    /// Where field number `slot` of the table at `table` is stored; `None` when it has its default.
    fn field(&self, table: usize, slot: usize) -> Result<Option<usize>, Fault> {
        let back = i64::from(self.i32(table)?);
        let vtable = (table as i64).checked_sub(back).and_then(|v| usize::try_from(v).ok());
        let vtable = vtable.ok_or_else(|| format!("the table at byte {table} has no layout"))?;
        let size = usize::from(self.u16(vtable)?);
        let entry = 4 + 2 * slot;
        if entry + 2 > size {
            return Ok(None);
        }
        let offset = usize::from(self.u16(vtable + entry)?);
        Ok(if offset == 0 { None } else { table.checked_add(offset) })
    }

    fn table(&self, table: usize, slot: usize) -> Result<Option<usize>, Fault> {
        self.field(table, slot)?.map(|at| self.target(at)).transpose()
    }

    /// Start and length of a vector of `width`-byte elements; empty when absent.
    fn vector(&self, table: usize, slot: usize, width: usize) -> Result<(usize, usize), Fault> {
        let Some(at) = self.table(table, slot)? else { return Ok((0, 0)) };
        let len = self.u32(at)? as usize;
        let bytes = len.checked_mul(width).ok_or("a vector is too long")?;
        self.slice(at + 4, bytes)?;
        Ok((at + 4, len))
    }

    /// The tables of a vector of tables.
    fn tables(&mut self, table: usize, slot: usize) -> Result<Vec<usize>, Fault> {
        let (start, len) = self.vector(table, slot, 4)?;
        self.spend(len * 4)?;
        (0..len).map(|i| self.target(start + 4 * i)).collect()
    }

    fn text(&mut self, table: usize, slot: usize) -> Result<String, Fault> {
        let (start, len) = self.vector(table, slot, 1)?;
        self.spend(len)?;
        let text = std::str::from_utf8(self.slice(start, len)?).map_err(|_| "a name is not UTF-8")?;
        Ok(text.to_string())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Fault> {
        self.budget = self.budget.checked_sub(bytes).ok_or("its parts overlap")?;
        Ok(())
    }

    fn tensors(&mut self, table: usize, slot: usize) -> Result<Vec<(String, Literal)>, Fault> {
        self.tables(table, slot)?.into_iter().map(|t| self.tensor(t)).collect()
    }

    fn tensor(&mut self, table: usize) -> Result<(String, Literal), Fault> {
        let name = self.text(table, 0)?;
        let (dims, rank) = self.vector(table, 2, 8)?;
        self.spend(rank.saturating_mul(8))?;
        let dims: Result<Vec<i64>, Fault> = (0..rank).map(|i| self.i64(dims + 8 * i)).collect();
        let code = self.field(table, 3)?.map_or(Ok(0), |at| self.i32(at))?;
        let (start, len) = self.vector(table, 4, 1)?;
        let at = |e: Fault| Fault::Bad(format!("tensor `{name}`: {e}"));
        let ty = tensor_type(dtype(code).map_err(at)?, &dims?).map_err(at)?;
        self.spend(len).map_err(at)?;
        let data = self.bytes.share(self.slice(start, len)?);
        let literal = Literal::new(ty, data).map_err(at)?;
        Ok((name, literal))
    }

    fn group(&mut self, table: usize) -> Result<Group, Fault> {
        let step = self.field(table, 1)?.map_or(Ok(0), |at| self.i64(at))?;
        let rate = self.field(table, 2)?.map_or(Ok(0), |at| self.u32(at))?;
        let mut moments = Vec::new();
        for state in self.tables(table, 3)? {
            let param = self.text(state, 0)?;
            for (moment, content) in self.tensors(state, 1)? {
                self.spend(param.len())?;
                moments.push((param.clone(), moment, content));
            }
        }
        Ok(Group { step, learning_rate: f32::from_bits(rate), moments })
    }
}
