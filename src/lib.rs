//! bf16scope: a bfloat16 toolkit for XLA.
pub mod audit;
pub mod cli;
pub mod data;
pub mod files;
pub mod graph;
pub mod hlo;
pub mod interop;
pub mod models;
pub mod nn;
pub mod numerics;
pub mod optim;
pub mod passes;
pub mod pjrt;
pub mod report;
pub mod tpu;
pub mod train;
