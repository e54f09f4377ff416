//! The verifier as a black box: a corpus of broken modules with whole messages, and random corruptions; and
//! comparisons with XLA itself and with its users' modules.
//!
//! `UPDATE_EXPECT=1 cargo test --test hlo verify::` rewrites the messages.

mod build;
mod corpus;
mod corruption;
pub mod xla;
#[cfg(feature = "xla")]
mod xla_rs;
