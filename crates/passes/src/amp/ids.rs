//! Ids of the values, nodes and frames of a [`Dataflow`](super::dataflow::Dataflow).

/// A value (an array or a token): index into `Dataflow::values`.
pub(super) type ValueId = u32;
/// An op on values: index into `Dataflow::nodes`.
pub(super) type NodeId = u32;
/// A computation at one call site: index into `Dataflow::frames`.
pub(super) type FrameId = u32;
