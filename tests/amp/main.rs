//! Lowering to low precision: on the modules that JAX and TensorFlow made, and on small ones written here.

mod foreign;
mod oracle;
mod random;
mod small;
