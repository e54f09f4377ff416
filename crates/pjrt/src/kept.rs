//! The cache of a client's most recently compiled programs.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::compiled::Code;
use super::{CompileOptions, PjrtError};

/// A hash of program and options.
type Key = [u8; 32];

/// The most recently requested programs, at most `n_programs`; the latest is at the back.
pub(super) struct Kept {
    n_programs: usize,
    programs: Mutex<VecDeque<(Key, Slot)>>,
}

/// One program. Locked while it is compiled: concurrent requests wait for it.
type Slot = Arc<Mutex<Option<Arc<Code>>>>;

impl Kept {
    pub(super) fn new(n_programs: usize) -> Kept {
        Kept { n_programs, programs: Mutex::default() }
    }

    /// The code of this program, from the cache or from `compile`. A failure is not cached.
    pub(super) fn code(
        &self,
        program: &[u8],
        options: &CompileOptions,
        compile: impl FnOnce() -> Result<Code, PjrtError>,
    ) -> Result<Arc<Code>, PjrtError> {
        let slot = self.slot(key(program, options));
        // A panic while compiling leaves the slot empty.
        let mut code = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = &*code {
            return Ok(Arc::clone(code));
        }
        let compiled = Arc::new(compile()?);
        *code = Some(Arc::clone(&compiled));
        Ok(compiled)
    }

    /// The slot of a program, which becomes the latest.
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
