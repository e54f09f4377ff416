//! Lowering to low precision: on the modules that JAX and TensorFlow made, and on small ones written here.

mod amplified;
mod choices;
mod corpus;
mod decided;
mod decisions;
mod evaluate;
mod exact;
mod facts_borders;
mod facts_programs;
mod foreign;
mod given;
mod invariants;
mod known_failures;
mod logits;
mod loops;
pub mod oracle;

mod elementwise;
mod page;
mod partitioned;
mod parts;
mod programs;
mod random;
mod random_differentiated;
mod reports;
mod results;
mod roundings;
mod small;
mod storage;
mod tables;
mod written_twice;
