//! Ids of instructions and computations: their indices in a module.

/// An instruction of one computation: its index in [`Computation::instructions`](super::Computation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstrId(pub u32);

/// A computation of a module: its index in [`Module::computations`](super::Module).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompId(pub u32);

impl InstrId {
    /// As an index.
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}

impl CompId {
    /// As an index.
    pub const fn idx(self) -> usize {
        self.0 as usize
    }
}
