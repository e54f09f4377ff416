//! What is asked of the TPU compiler about a model or a module: what it takes ([`subject`](self)), which batch fits, which slice
//! to rent, what each option saves.
//!
//! A question is a plain value, an answer is a plain value that serialises, and what happens in between comes by a callback.
//! The program `bf16scope` asks here and prints; another crate asks in the same way. The arithmetic over answers is
//! [`tpu`](crate::tpu)'s (`tpu::fit`, `tpu::plan`, `tpu::verdict`); this room builds programs, asks the compiler for them and
//! puts the answers together. It does not print, and reads no environment.

mod error;
mod mesh;
mod model;
pub mod module_file;
mod shell;
mod tune;

pub use error::StudyError;
pub use mesh::{MeshChoice, check_no_model_axis, check_slice};
pub use model::{ModelProgram, ModelSubject, build, read, unit};
pub use module_file::Converter;
pub(crate) use shell::word;
pub use tune::TuneChoice;
