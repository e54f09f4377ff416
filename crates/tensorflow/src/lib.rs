//! Reads TensorFlow graphs (a Saver's `.meta`, a SavedModel, a frozen `.pb` or `.pbtxt`) and lowers them to HLO, without
//! TensorFlow and without running anything.
//!
//! [`Graph::read`] reads a file; [`lower`] turns a graph's training, evaluation or prediction function into an
//! [`hlo::Module`](bf16scope_hlo::Module): variables are parameters and, where they are assigned, results; casts are as the
//! graph has them; host-only ops (summaries, savers) are left out and listed. [`port`] writes a graph's network and training
//! as an experiment, [`slips`] lists mistakes that its dtypes show, and [`read_script`] lints a Python script.
//!
//! ```
//! use bf16scope_tensorflow::{Choice, Graph, lower};
//!
//! let text = r#"
//!     node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } }
//!            attr { key: "shape" value { shape { dim { size: -1 } dim { size: 3 } } } } }
//!     node { name: "y" op: "Relu" input: "x" }
//!     versions { producer: 1808 }"#;
//! let graph = Graph::read(text.as_bytes(), "relu.pbtxt")?;
//! let lowered = lower(&graph, &Choice { name: None, size_of: &|_, _| Some(8) })?;
//! assert_eq!(lowered.roles.inputs[0].shape.to_string(), "f32[8,3]");
//! assert_eq!(lowered.roles.results[0].name, "y");
//! # Ok::<(), bf16scope_tensorflow::GraphError>(())
//! ```

#![forbid(unsafe_code)]

mod choice;
mod debug_info;
mod dtypes;
mod error;
mod graph;
mod host;
mod index_map;
mod kind;
mod lower;
mod messages;
mod node;
mod outputs;
mod ported;
mod scan;
mod schema;
mod script;
mod tensor;
mod text;

pub use choice::{Choice, SizeOf};
pub use error::GraphError;
pub use graph::{Body, Function, Graph, Signature, VariableInfo};
pub use kind::GraphKind;
pub use lower::{InputInfo, Lowered, ResultInfo, Roles, known_ops, lower};
pub use node::{Edge, Node};
pub use ported::{
    HeadLine, LayerLine, NetworkPort, Note, PipelineStep, Place, Ported, Slip, SlipKind, TrainingPort, VariableCount,
    port, port_with_batch, slips,
};
pub use script::{Finding, ScriptReading, SequentialModel, read_script};
