//! A bfloat16 toolkit for XLA: build or import a program, lower it to bf16, run it on a CPU, compile it for a TPU.
//!
//! bf16scope works on XLA's own IR, HLO. It has a builder with TensorFlow's `bfloat16_scope`, layers, losses, optimizers
//! and reverse-mode differentiation; a pass that lowers any HLO module to bf16; a safe layer over the PJRT C API that
//! runs modules on a CPU and compiles them for Cloud TPUs that are not there; and exact arithmetic on float formats.
//! Nothing is linked: XLA comes as two plugins that are downloaded on first use.
//!
//! This page says what a program is and what you can rely on. Each module then has a page of its own.
//!
//! # A program is data
//!
//! There is one IR, [`hlo::Module`], and it is HLO itself. What you build, what a pass rewrites, what is printed and what
//! is compiled are the same data, with public fields:
//!
//! - A [`Module`](hlo::Module) holds computations; one is the entry, the others are called by instructions.
//! - A [`Computation`](hlo::Computation) holds instructions in an order in which operands come first. An
//!   [`InstrId`](hlo::InstrId) is a position in it.
//! - An [`Instruction`](hlo::Instruction) has an [`Op`](hlo::Op) with all its attributes, operands, a
//!   [`Shape`](hlo::Shape), and metadata: the layer's name and the line of *your* source that made it.
//! - A [`DType`](hlo::DType) is `f32`, `bf16`, `s32`, `pred`, …: all that HLO has.
//!
//! Each op has one shape rule. The builder makes shapes with it, [`hlo::verify()`] checks them with it. The rules for
//! gradients and for precision stand beside it, in [`hlo::ops`].
//!
//! # Build a program
//!
//! A [`Graph`](graph::Graph) writes the entry computation. A [`Scope`](graph::Scope) makes variables; inside a bf16 scope
//! they are stored as f32 and read as bf16. Layers are functions in [`nn`]. They ask for variables in the dtype of their
//! input, so casting the input is what turns a network bf16:
//!
//! ```
//! use bf16scope::prelude::*;
//!
//! let g = Graph::training("step");
//! let images = g.input("images", DType::BF16, [32, 28, 28, 1]);
//! let labels = g.input("labels", DType::S32, [32]);
//! let step = g.input("step", DType::S32, []);
//!
//! let logits = g.bf16_scope(|s| {
//!     let x = nn::conv2d(s, &images, "conv", &Conv2d { filters: 16, kernel_size: [3, 3], ..Conv2d::default() });
//!     let x = nn::relu(&x).mean(&[1, 2]);
//!     nn::dense(s, &x, "logits", &Dense { units: 10, ..Dense::default() })
//! });
//! let loss = nn::sparse_softmax_cross_entropy(&logits.cast(DType::F32), &labels, 0.0);
//!
//! // Reverse mode appends to the same computation, and so does the optimizer.
//! let variables = g.trainable_variables();
//! let gradients = gradients(&loss, &variables)?;
//! Update::default().apply(&step, &variables, &gradients);
//!
//! let program = g.finish(&[("loss", &loss)])?;
//! hlo::verify(&program.module)?;
//! assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32)); // master weights
//! let text = hlo::text::print(&program.module, &Default::default());
//! assert!(text.contains("bf16[32,26,26,16]")); // what the convolution gives
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Calls on the builder return no `Result`. The first error is kept, its result is poisoned, and
//! [`finish`](graph::Graph::finish) returns it with the layer, the operands and your file and line. Dtypes never promote:
//! mixed operands are an error that names both tensors. A part of a network that stands in it twice under one set of variables,
//! such as the towers of a siamese one, is built in [`Scope::shared`](graph::Scope::shared).
//!
//! A [`Task`](task::Task) says what is learnt: TensorFlow's `model_fn` as a trait. [`train::program`] makes its training,
//! evaluation and prediction programs, with loss scaling, micro-batches and rematerialisation; [`train::Session`] drives
//! them on a device; [`train::run`](train::run()) is the whole loop, with checkpoints. [`models`] is a zoo of tasks.
//!
//! [`train::Trainer`] is all of that in one call; its page has an example that runs:
//!
//! ```
//! # use bf16scope::{data::Arrays, prelude::*, train::TrainError};
//! # fn f(task: impl Task + 'static, training: Arrays, test: Arrays) -> Result<(), TrainError> {
//! let model = Trainer::new(task).epochs(20).checkpoint("model.safetensors").fit(&training, &test)?;
//! println!("{:?}", model.evaluate(&test)?.value("accuracy"));
//! println!("{:?}", model.predict(&test)?.to_vec::<i32>("class")?);
//! # Ok(()) }
//! ```
//!
//! # Bring a program
//!
//! Modules come from JAX, TensorFlow, PyTorch/XLA or xla-rs as text ([`hlo::text`]) or as an `HloModuleProto`
//! ([`hlo::proto`]), and leave the same ways. What the IR does not model is carried through unharmed.
//! [`passes::amp`] lowers f32 to bf16 or f16 by a [`Policy`](passes::amp::Policy) and reports what it decided for each
//! instruction, and why:
//!
//! ```
//! use bf16scope::hlo::text;
//! use bf16scope::passes::amp::{self, Policy};
//!
//! let module = text::parse(
//!     "HloModule scores
//!      ENTRY main {
//!        x = f32[8,64] parameter(0)
//!        w = f32[64,10] parameter(1)
//!        scores = f32[8,10] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//!        ROOT probabilities = f32[8,10] exponential(scores)
//!      }",
//!     "scores.hlo",
//! )?;
//! let (lowered, report) = amp::run(&module, &Policy::default())?;
//! assert!(text::print(&lowered, &Default::default()).contains("bf16[8,10]"));
//! for decision in report.explain("probabilities") {
//!     println!("{decision:?}"); // kept in f32: a large exponent would lose its low bits
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`audit`] runs both modules on the same inputs and finds the instruction at which they part.
//!
//! # Run it, and compile it for a TPU
//!
//! A [`pjrt::Client`] compiles a serialized module and runs it on buffers. [`tpu::Compiler`] asks Google's TPU compiler
//! what the same module costs on a TPU, and remembers the answer on disk. Both install their plugin on first use (63 and
//! 137 MB), so these lines are compiled here but not run:
//!
//! ```no_run
//! # use bf16scope::prelude::*;
//! use bf16scope::hlo::{proto::encode, verify};
//! use bf16scope::pjrt::{Arg, Client, CompileOptions, Setup};
//! use bf16scope::tpu::Compiler;
//!
//! # fn main() {}
//! # fn judge(program: Program) -> Result<(), Box<dyn std::error::Error>> {
//! verify(&program.module)?; // XLA aborts the process over some of what this refuses
//! let bytes = encode::to_bytes(&program.module)?;
//!
//! let client = Client::cpu()?;
//! let executable = client.compile(&bytes, &CompileOptions::default())?;
//! let x = client.buffer(&[0.5f32, 1.0, 1.5, 2.0], [2, 2])?;
//! let results = executable.execute(vec![Arg::Keep(&x)])?;
//! println!("{:?}", results[0].to_vec::<f32>()?);
//!
//! let compiled = Compiler::new(&Setup::from_env()).compile(&"tpu-v3".parse()?, &bytes, 32)?;
//! println!("{:?}", compiled.outcome); // HBM, flops, bytes, cycles; or that it does not fit
//! # Ok(()) }
//! ```
//!
//! XLA may by default drop an f32→bf16→f32 pair and the rounding with it (*excess precision*). [`pjrt::CompileOptions`]
//! turns that off, so the roundings in a module are the roundings that are computed.
//!
//! # Look at the numbers
//!
//! [`numerics`] holds the formats as data, with exact decimals, so that a rounding error has all its digits:
//!
//! ```
//! use bf16scope::numerics::{Format, Number};
//!
//! let tenth: Number = "0.1".parse()?;
//! let bits = Format::BF16.encode(&tenth);
//! assert_eq!(bits, 0x3DCD);
//! assert_eq!(Format::BF16.exact(bits).unwrap().to_string(), "0.10009765625");
//! # Ok::<(), bf16scope::numerics::ParseNumberError>(())
//! ```
//!
//! # The rooms
//!
//! A room is a module of this page, and lives in one of the crates that `bf16scope` re-exports, which can be had alone:
//! `bf16scope-hlo`, `-files`, `-pjrt`, `-passes`, `-data`, `-foreign`, `-tensorflow`, `-audit`, `-tpu`, `-model`, `-train`, `-study`. It names
//! only rooms above it in this list; Cargo and a test enforce the exact arrows in `ARCHITECTURE.md`.
//!
//! | module | what it is for |
//! | --- | --- |
//! | [`hlo`] | the IR: dtypes, shapes, literals, ops; the verifier; text and proto |
//! | [`tuning`] | what makes a program cheaper on its target |
//! | [`numerics`] | float formats to the last bit; lost updates; how far arrays are apart |
//! | [`graph`] | the builder: [`Graph`](graph::Graph), [`Tensor`](graph::Tensor), [`Scope`](graph::Scope) |
//! | [`nn`] | layers, losses and metrics |
//! | [`optim`] | optimizers, learning-rate schedules and loss scaling, emitted into the program |
//! | [`passes`] | module to module: reverse mode, rematerialisation, low precision, dead code |
//! | [`task`] | [`Task`](task::Task): what an example holds, and one function from it to loss, metrics and predictions |
//! | [`document`] | YAML to configuration types, with errors at their place |
//! | [`models`] | a small zoo of tasks, each network a serde configuration and a function |
//! | [`files`] | reading a file up to a bound, replacing one whole |
//! | [`data`] | data sets, `.npz` arrays, batches, the cast to bf16 on the host |
//! | [`weights`] | files of weights, as other frameworks keep them: read and written |
//! | [`pjrt`] | plugins, clients, buffers, executables, topologies |
//! | [`foreign`] | modules of other frameworks: StableHLO, and what their exports hold |
//! | [`tensorflow`] | TensorFlow's graphs: read, and as HLO |
//! | [`interop`] | xla-rs's objects and ours, both ways (feature `xla`) |
//! | [`audit`] | where a module and its lowered form part |
//! | [`tpu`] | targets, what the TPU compiler reports, the batch that fits |
//! | [`weight_names`] | which array of a file of weights is which variable of a network, by rules |
//! | [`train`] | training programs, the loop, checkpoints |
//! | [`run_folder`] | folders of recorded runs: read, and written |
//! | [`experiment`] | what an experiment file says: model, data, training, mesh, tuning |
//! | [`study`] | what is asked of the TPU compiler about a model or a module |
//! | [`prelude`] | what a file that builds a model imports |
//!
//! # What you can rely on
//!
//! - **Verified means safe.** A module that [`hlo::verify()`] accepts is printed, encoded and rewritten without a panic,
//!   and does not make XLA abort. Verify before you compile.
//! - **Input never panics.** Files, text, protos, checkpoints and plugins that are wrong are errors. Readers have bounds.
//! - **Deterministic.** The same model gives the same HLO, byte for byte. On one processor the same seed gives the same
//!   weights, bit for bit, also across a checkpoint.
//! - **Roundings are where the module has them.** Every accumulator and every cast is in the instruction.
//! - **Gradients are checked** against finite differences in f64 for every op that has one (`docs/GRADIENTS.md`).
//! - **`unsafe` is in [`pjrt`] only.** Loading a plugin runs its code in your process;
//!   [`Client::in_child`](pjrt::Client::in_child) runs it in another one, with limits of time and memory.
//! - **Threads.** A module is plain data, `Send` and `Sync`, and so is everything in [`pjrt`]. A
//!   [`Graph`](graph::Graph) stays on the thread that made it.
//!
//! Several devices train together by [`Mesh`](train::Mesh). Not yet tried: running on a TPU. Not there: plugins for anything
//! but Linux on x86-64.
//!
//! # Errors
//!
//! Each room has its own typed errors, which implement [`std::error::Error`] and lead to their causes by `source()`. A
//! message says where, what was measured and what was expected, and ends with a line `help: …` where there is something
//! to do about it:
//!
//! ```text
//! main/%dot.3: contracting sizes differ: lhs[1]=128, rhs[0]=256
//! help: transpose rhs or set rhs_contracting=[1]
//! ```
//!
//! Errors and reports are `#[non_exhaustive]`: they gain variants and fields without a new major version. Configurations
//! are not, so that they are written `Dense { units: 10, ..Dense::default() }`. [`hlo::Op`] is exhaustive too: a `match` on it
//! does not compile where an op was added.
//!
//! Logs go through `tracing`; no function
//! prints, except that a plugin's download is announced on standard error.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! | --- | --- | --- |
//! | `cli` | yes | the program `bf16scope`: the crates `bf16scope-cli` and `bf16scope-report`, with clap, indicatif, comfy-table, tracing-subscriber, anyhow |
//! | `records` | with `cli` | Parquet files as data |
//! | `text` | with `cli` | tokenizers: `tokenizer.json` and `vocab.txt` |
//! | `ndarray` | no | [`hlo::Array`] from views of the crate `ndarray`, and back |
//! | `object-store` | no | data files by URL, `gs://`, `s3://`, `http://` and `https://`: [object_store](https://github.com/apache/arrow-rs-object-store); compiles C |
//! | `xla` | no | [xla-rs](https://github.com/LaurentMazare/xla-rs) 0.4.3: `interop::xla`, and its client as the device `xla-cpu`; links C++ |
//!
//! A library leaves the program out:
//!
//! ```toml
//! bf16scope = { version = "0.2", default-features = false }
//! ```

#![forbid(unsafe_code)]

pub use bf16scope_audit as audit;
pub use bf16scope_data as data;
pub use bf16scope_data::weights;
pub use bf16scope_files as files;
pub use bf16scope_foreign as foreign;
pub use bf16scope_hlo as hlo;
pub use bf16scope_hlo::numerics;
pub use bf16scope_model::{document, graph, models, nn, optim, task};
pub use bf16scope_passes as passes;
pub use bf16scope_passes::tuning;
pub use bf16scope_pjrt as pjrt;
pub use bf16scope_pjrt::interop;
pub use bf16scope_study as study;
pub use bf16scope_tensorflow as tensorflow;
pub use bf16scope_tpu as tpu;
pub use bf16scope_train as train;
pub use bf16scope_train::{experiment, run_folder, weight_names};

pub mod prelude;

#[cfg(test)]
mod tests {
    fn is_shared<T: Send + Sync>() {}

    /// As the page above says of threads.
    #[test]
    fn modules_and_handles_cross_threads() {
        is_shared::<crate::hlo::Module>();
        is_shared::<crate::pjrt::Client>();
        is_shared::<crate::pjrt::Executable>();
        is_shared::<crate::pjrt::Buffer>();
        is_shared::<crate::pjrt::Compiled>();
        is_shared::<crate::pjrt::Topology>();
        is_shared::<crate::tpu::Compiler>();
    }
}
