//! Numbers of what a [`Dataflow`](super::dataflow::Dataflow) holds.

/// A value: an array (or token), by index into its values.
pub(super) type ValueId = u32;
/// An op on values, by index into its nodes.
pub(super) type NodeId = u32;
/// A computation at one call site, by index into its frames.
pub(super) type FrameId = u32;
