//! Lowering to low precision: on the modules that JAX and TensorFlow made, and on small ones written here.

mod decided;
mod decisions;
mod foreign;
mod logits;
pub mod oracle;

mod partitioned;
mod random;
mod random_differentiated;
mod small;
mod storage;
mod tables;
