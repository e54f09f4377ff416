//! The programs that a client compiled last, for when one of them is asked for again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::compiled::Code;
use super::{CompileOptions, PjrtError};

/// Program and options, hashed.
type Key = [u8; 32];

/// The programs that were asked for last, at most `n_programs`; the last one is at the back.
pub(super) struct Kept {
    n_programs: usize,
    programs: Mutex<VecDeque<(Key, Slot)>>,
}

/// One program. Locked while it is compiled: who asks for it meanwhile waits, and then has it.
type Slot = Arc<Mutex<Option<Arc<Code>>>>;

impl Kept {
    pub(super) fn new(n_programs: usize) -> Kept {
        Kept { n_programs, programs: Mutex::default() }
    }

    /// The code of this program: what is kept, or what `compile` makes. A failure is not kept.
    pub(super) fn code(
        &self,
        program: &[u8],
        options: &CompileOptions,
        compile: impl FnOnce() -> Result<Code, PjrtError>,
    ) -> Result<Arc<Code>, PjrtError> {
        let slot = self.slot(key(program, options));
        // Who panics while compiling leaves the slot empty.
        let mut code = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = &*code {
            return Ok(Arc::clone(code));
        }
        let made = Arc::new(compile()?);
        *code = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The place of a program, which is the last one asked for now.
    fn slot(&self, key: Key) -> Slot {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match programs.iter().position(|(other, _)| *other == key) {
            Some(at) => programs.remove(at).expect("a position in it").1,
            None => Slot::default(),
        };
        programs.push_back((key, Arc::clone(&slot)));
        if programs.len() > self.n_programs {
            programs.pop_front();
        }
        slot
    }
}

fn key(program: &[u8], options: &CompileOptions) -> Key {
    let options = options.encode();
    let mut hash = Sha256::new();
    hash.update((options.len() as u64).to_le_bytes());
    hash.update(options);
    hash.update(program);
    hash.finalize().into()
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("n_programs", &self.n_programs).finish_non_exhaustive()
    }
}
