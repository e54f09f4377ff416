//! The set of names in one list of text, such as an instruction's attributes, which must be unique.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::error::ParseErrorKind;
use super::lex::{Fault, Read};

/// Up to this many names, a linear search is fastest.
const N_FEW: usize = 16;

/// The names so far.
#[derive(Default)]
pub(super) struct Names<'a> {
    few: SmallVec<[&'a str; N_FEW]>,
    /// All names, once there are many.
    many: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    /// Adds a name, which is at `offset`. A name that is present already is an error.
    pub(super) fn insert(&mut self, name: &'a str, what: &'static str, offset: usize) -> Read<()> {
        if self.few.len() == N_FEW && self.many.is_empty() {
            self.many.extend(&self.few);
        }
        let is_new = match self.few.len() < N_FEW {
            true => !self.few.contains(&name),
            false => self.many.insert(name),
        };
        if !is_new {
            return Err(Fault::new(offset, ParseErrorKind::DuplicateName { what, name: name.to_string() }));
        }
        if self.few.len() < N_FEW {
            self.few.push(name);
        }
        Ok(())
    }
}
