//! Robustness tests: bad files, killed runs, modules that make XLA abort, and former silent failures. Each file attacks one
//! part.

#[path = "../support/binary.rs"]
mod binary;
mod door;

mod caches;
mod checkpoints;
mod children;
mod collectives;
mod custom_vjp;
mod endings;
#[path = "../support/examples.rs"]
mod examples;
mod files;
mod graphs;
mod inputs;
mod kills;
mod meaning;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../support/random.rs"]
mod modules;
mod mutations;
mod parquet;
mod passes;
mod places;
mod plugins;
mod records;
mod resumption;
mod rows;
#[path = "../run/mod.rs"]
mod run;
mod scale;
mod sessions;
mod small_files;
mod stablehlo;
mod streams;
mod structured;
mod terminal;
mod tokenizers;
