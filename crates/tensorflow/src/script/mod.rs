//! Scripts in Python, read without Python: what needs no dtype is found from the words, and said to be read from the source.
//!
//! A script that does not parse whole is read as far as it goes: this knows tokens, logical lines and indentation, and no
//! grammar, so Python 2's `print` and half a file are no trouble. What it does not follow it lists.

mod rules;
mod tokens;

pub use rules::{Finding, ScriptReading, read_script};
