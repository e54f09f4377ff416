//! The verifier as a black box: a corpus of broken modules with whole messages, and random corruptions.
//!
//! `UPDATE_EXPECT=1 cargo test --test verify` rewrites the messages.

mod build;
mod corpus;
mod corruption;
