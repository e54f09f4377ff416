//! The TPU compiler's output, and its interpretation.

#[path = "../support/first.rs"]
mod first;

mod amp_tpu;
mod explain;
mod fit;
mod lower;
mod modules;
mod precision;
mod several;
#[path = "../support/mod.rs"]
mod support;
mod tpu;
mod tpu_cache;
mod tpu_models;
