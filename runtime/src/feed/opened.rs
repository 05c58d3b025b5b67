//! The data that the user gives, as it is opened.

use std::collections::BTreeMap;

use memc_ir::TensorType;
use memc_plan::{Feed, Plan};

use super::FeedOptions;
use super::array::Array;
use super::checks::{Wanted, lasts, reserved};
use super::legal::{self, Legal};
use super::order::Order;
use super::ragged::Ragged;
use super::source::InputSource;
use super::table::{Table, Units};
use crate::jobs::Job;
use crate::{Error, Program};

/// The data that the user gives.
pub(super) struct Opened<'n> {
    /// Values that kernels accept in each bucket, by the index of the input.
    limits: Vec<BTreeMap<usize, Vec<Legal>>>,
    /// Data of which each step reads another part.
    pub(super) tables: Vec<Table>,
    /// Bytes that are the same at every step, by name.
    pub(super) fixed: BTreeMap<&'n str, Vec<u8>>,
    /// Whether any of those came through a pipe.
    is_piped: bool,
}

impl<'n> Opened<'n> {
    /// No data yet.
    pub(super) fn new(limits: Vec<BTreeMap<usize, Vec<Legal>>>) -> Opened<'n> {
        Opened { limits, tables: Vec::new(), fixed: BTreeMap::new(), is_piped: false }
    }

    /// Whether some of the data can be read once only.
    pub(super) fn is_stream(&self) -> bool {
        self.is_piped || self.tables.iter().any(|table| table.units.is_stream())
    }

    /// Opens the data of an input for a job.
    pub(super) fn open(
        &mut self,
        name: &'n str,
        source: &InputSource,
        wanted: &Wanted<'_>,
        (job, buckets): (&Job, &[(&Plan, &Program)]),
        options: &FeedOptions,
    ) -> Result<(), Error> {
        let Wanted { micros, ty, inputs, job: at } = wanted;
        // Buckets have their inputs in the same order.
        let of_bucket = |limits: &BTreeMap<usize, Vec<Legal>>| {
            let mut legal: Vec<Legal> =
                inputs.iter().filter_map(|i| limits.get(i)).flatten().cloned().collect();
            legal.dedup();
            legal
        };
        let legal: Vec<Vec<Legal>> = self.limits.iter().map(of_bucket).collect();
        let types = types_of(name, buckets);
        let (units, count, batch) = if types.iter().any(|other| other != *ty) {
            let pad = options.pads.iter().find(|(input, _)| input == name).map(|(_, pad)| *pad);
            let ragged = Ragged::open(source, name, &types, pad)?;
            if let Some(pad) = ragged.pad() {
                let one = TensorType::new(ty.dtype, [1]);
                let wrong = legal.iter().find_map(|legal| legal::first_wrong(legal, &one, pad));
                if let Some(what) = wrong {
                    return Err(Error::Usage(format!("--pad {name}: the model does not take it: {what}")));
                }
            }
            let count = ragged.units;
            (Units::Ragged(ragged), count, 1)
        } else {
            let mut array = Array::open(source, name, ty)?;
            if array.is_whole {
                let mut bytes = reserved(ty, name)?;
                array.read(0, &mut bytes)?;
                let step = job.done(options.done).saturating_add(1);
                legal.iter().try_for_each(|legal| legal::check(legal, name, ty, &bytes, step))?;
                self.is_piped |= array.is_stream();
                self.fixed.insert(name, bytes);
                return Ok(());
            }
            let (count, batch) = (array.units, array.batch);
            (Units::Even(array), count, batch)
        };
        let each = micros / u64::from(job.steps);
        let order = Order { units: count, batch, micros: each, shuffle: options.shuffle };
        lasts(name, &units, &order, job, options)?;
        let largest = types.iter().max_by_key(|ty| ty.bytes()).unwrap_or(ty);
        let buffers = (0..*micros).map(|_| reserved(largest, name)).collect::<Result<_, _>>()?;
        let name = name.to_owned();
        self.tables.push(Table { name, types, units, order, legal, job: *at, buffers });
        Ok(())
    }

    /// Refuses data of one step that differs where the model has one dimension.
    pub(super) fn check_lengths(&self) -> Result<(), Error> {
        // An axis stands for the dimension whose sizes it has in the buckets.
        let mut known: BTreeMap<(usize, Vec<u64>), (&Table, &Ragged, usize)> = BTreeMap::new();
        for table in &self.tables {
            let Units::Ragged(ragged) = &table.units else { continue };
            let rank = table.types.first().map_or(0, |ty| ty.shape.len());
            for axis in 0..rank {
                let sizes: Vec<u64> =
                    table.types.iter().filter_map(|ty| ty.shape.get(axis).copied()).collect();
                if sizes.iter().all(|size| Some(size) == sizes.first()) {
                    continue;
                }
                let (first, other, at) = *known.entry((table.job, sizes)).or_insert((table, ragged, axis));
                let units = ragged.units.min(other.units);
                if let Some(text) = other.differs(at, ragged, axis, units) {
                    return Err(Error::Data(format!("inputs `{}` and `{}`: {text}", first.name, table.name)));
                }
            }
        }
        Ok(())
    }

    /// Refuses pads of inputs that take none, and a second one of an input.
    pub(super) fn check_pads(&self, options: &FeedOptions) -> Result<(), Error> {
        let takes =
            |name: &str| self.tables.iter().any(|t| t.name == name && matches!(t.units, Units::Ragged(_)));
        let count = |name: &str| options.pads.iter().filter(|(other, _)| other == name).count();
        if let Some((name, _)) = options.pads.iter().find(|(name, _)| count(name) > 1) {
            return Err(Error::Usage(format!("--pad {name} is given twice")));
        }
        match options.pads.iter().find(|(name, _)| !takes(name)) {
            None => Ok(()),
            Some((name, _)) => Err(Error::Usage(format!(
                "--pad {name}: no data is given for an input of this name whose size is another in some \
                 bucket; leave it out"
            ))),
        }
    }
}

/// Types of the data input with a name, in each bucket.
fn types_of(name: &str, buckets: &[(&Plan, &Program)]) -> Vec<TensorType> {
    let of = |(plan, program): &(&Plan, &Program)| {
        let mut inputs = plan.inputs.iter().zip(&program.types.inputs);
        let is_it =
            |input: &memc_plan::Input| matches!(&input.feed, Feed::Data { source, .. } if source == name);
        inputs.find(|(input, _)| is_it(input)).map(|(_, ty)| ty.clone())
    };
    buckets.iter().filter_map(of).collect()
}
