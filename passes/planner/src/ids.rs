//! Ids of what planning counts: `u32`s with a type each, so that none indexes what another is for.
//!
//! An `Id` names an entity of a problem. A `Pos` is a place in an order, and positions compare as the order
//! goes. An `Ix` is an index in one trace or sequence, and means nothing in another. `memc_ir`'s ids of the
//! same things are others: they index modules.

use memc_ir::ids;

ids! {
    /// A tensor of a problem.
    pub TensorId,
    /// An op of a problem, by its position in the problem's order.
    #[derive(Default)]
    pub OpPos,
    /// An op of a problem that runs on the host.
    pub HostOpIx,
    /// A step of an access sequence. The number of steps stands for the end of the sequence.
    #[derive(Default)]
    pub StepPos,
    /// A gap of an access sequence.
    #[derive(Default)]
    pub GapIx,
    /// A slot of a trace.
    pub SlotIx,
    /// A command of a trace, in host issue order.
    pub CommandIx,
    /// A moment of trace time, which counts allocations, releases and commands.
    #[derive(Default)]
    pub Tick,
}

impl Tick {
    /// After everything.
    pub const NEVER: Tick = Tick(u32::MAX);

    /// The moment after this one.
    #[inline]
    #[must_use]
    pub fn next(self) -> Tick {
        Tick(self.0 + 1)
    }
}

impl CommandIx {
    /// The command after this one.
    #[inline]
    #[must_use]
    pub fn next(self) -> CommandIx {
        CommandIx(self.0 + 1)
    }
}

impl OpPos {
    /// The op after this one.
    #[inline]
    #[must_use]
    pub fn next(self) -> OpPos {
        OpPos(self.0 + 1)
    }
}

impl StepPos {
    /// The step after this one.
    #[inline]
    #[must_use]
    pub fn next(self) -> StepPos {
        StepPos(self.0 + 1)
    }
    /// The step before this one; none before the first.
    #[inline]
    pub fn previous(self) -> Option<StepPos> {
        self.0.checked_sub(1).map(StepPos)
    }
    /// The position of the step in a gap.
    #[inline]
    pub fn position(self) -> i32 {
        self.0 as i32
    }
    /// The step at a position of a gap; the first for what is before it.
    #[inline]
    pub fn at(position: i32) -> StepPos {
        StepPos(position.max(0) as u32)
    }
}
