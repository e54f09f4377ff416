//! Networks and training steps as XLA HLO: a graph builder with TensorFlow's `bfloat16_scope`, layers, losses, optimizers.
//!
//! A [`Graph`](graph::Graph) writes an [`hlo::Module`](bf16scope_hlo::Module) as it is built. Inside a bf16 scope,
//! variables are stored as f32 and read as bf16; layers ([`nn`]) request variables in the dtype of their input. A
//! [`Task`](task::Task) is a network with its loss and metrics, and [`models`] holds a small zoo of tasks, also as YAML
//! ([`document`]). Nothing here compiles or runs a program: `bf16scope-train` does.
//!
//! ```
//! use bf16scope_model::prelude::*;
//!
//! let g = Graph::new("logits");
//! let images = g.input("images", DType::BF16, [32, 28, 28, 1]);
//! let logits = g.bf16_scope(|s| {
//!     let x = nn::conv2d(s, &images, "conv", &Conv2d { filters: 16, kernel_size: [3, 3], ..Conv2d::default() });
//!     nn::dense(s, &nn::relu(&x).mean(&[1, 2]), "dense", &Dense { units: 10, ..Dense::default() })
//! });
//! let program = g.finish(&[("logits", &logits.cast(DType::F32))])?;
//! bf16scope_hlo::verify(&program.module)?;
//! assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32)); // master weights
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod document;
pub mod graph;
pub mod models;
pub mod nn;
pub mod optim;
pub mod prelude;
pub mod task;
