//! Runs third-party parsers on untrusted bytes: a panic there becomes an error of the file, and prints nothing on
//! standard error.
//!
//! Input that is known to make them panic is refused earlier ([`super::text::tokenizer`], [`super::records`]); this
//! covers the panics that are not known yet.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// The third-party code panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what reads it has a bug that it shows")]
pub(super) struct Panicked;

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run` and catches a panic in it without printing it; the previous panic hook still handles panics elsewhere.
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
    // No half-finished state is used again: each caller drops the values that it passed in, or shares them read-only.
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
        assert_eq!(Panicked.to_string(), "what reads it has a bug that it shows");
    }
}
