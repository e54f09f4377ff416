//! Names in one list of text, such as an instruction's attributes, of which none may come twice.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::error::ParseErrorKind;
use super::lex::{Fault, Read};

/// Among so few names looking at each is fastest.
const N_FEW: usize = 16;

/// The names so far.
#[derive(Default)]
pub(super) struct Names<'a> {
    few: SmallVec<[&'a str; N_FEW]>,
    /// All of them, once there are many.
    many: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    /// Adds a name, which stands at `offset`. An error is a name that is there already.
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
