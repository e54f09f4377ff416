//! The surroundings of a region: what is known of its operands and its results outside.

/// The facts about a value that follow from what it is computed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Known {
    /// Whether it is computed from a product.
    pub is_learned: bool,
    /// Whether it is computed from products, and from no result of a loop or a branch.
    pub is_of_products_alone: bool,
    /// Whether it is the same in every run.
    pub is_constant: bool,
}

/// The surroundings of a region, or of an op that runs regions. An empty list says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegionContext {
    /// The facts about each operand.
    pub operands: Vec<Known>,
    /// For each result whether a choice depends on it, with no product between.
    pub scores: Vec<bool>,
    /// Whether the program returns a loss, and this region is not on the way to it.
    pub is_backward: bool,
}

impl RegionContext {
    /// For each operand whether it is computed from a product.
    pub(super) fn learned(&self) -> Vec<bool> {
        self.operands.iter().map(|operand| operand.is_learned).collect()
    }
}
