//! Running what others' crates make of bytes from outside: a panic there is an error of the file, and says nothing on standard
//! error.
//!
//! What is known to make them panic is refused before ([`super::text::tokenizer`], [`super::records`]); this is for what is not
//! known yet.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// That a crate panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what reads it has a bug that it shows")]
pub(super) struct Panicked;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`. A panic in it is not reported: the hook that was set before is asked for those of others only.
pub(super) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, Panicked> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                before(panic);
            }
        }));
    });
    let was = IS_GUARDED.replace(true);
    // Nothing that it leaves half done is used again: each caller drops what it ran on, or has it by shared reference.
    let done = catch_unwind(AssertUnwindSafe(run));
    IS_GUARDED.set(was);
    done.map_err(|_| Panicked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_next_run_is_as_before() {
        assert_eq!(guarded(|| 7), Ok(7));
        assert_eq!(guarded(|| [1, 2].get(5).copied().expect("a bug of another's")), Err(Panicked));
        assert_eq!(guarded(|| guarded(|| panic!("inner")).map(|()| 1)), Ok(Err(Panicked)));
        assert!(!IS_GUARDED.get());
    }
}
