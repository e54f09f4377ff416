//! Lowering to low precision: on the modules that JAX and TensorFlow made, and on small ones written here.

mod decisions;
mod foreign;
#[path = "../support/random.rs"]
mod modules;
mod oracle;

mod random;
#[path = "../run/mod.rs"]
mod run;
mod small;
