//! XLA's HLO messages as prost structs: field numbers and wire types, nothing else.
//!
//! The structs follow the schema field by field, under the schema's names, so its comments are their documentation.
//! Enums are `i32`, because unknown numbers must survive. A message whose contents are not used here is declared as
//! `bytes`, which has the same wire format: it is carried verbatim, with whatever a later schema adds. `oneof` members
//! are separate optional fields; their wire format is the same too.
//!
//! Source: the descriptors of `xla/service/hlo.proto` and `xla/xla_data.proto` embedded in jaxlib 0.10.2, and
//! openxla/xla at 011b7582 for their meaning. Three fields that current XLA no longer has are kept for older modules:
//! `async_group_id` (78), `dot_sparsity` (86) and the module's `dynamic_parameter_binding` (9).
#![expect(missing_docs, reason = "fields are XLA's own, documented in its schema")]

mod data;
mod hlo;
mod shape;

pub use data::*;
pub use hlo::*;
pub use shape::*;
