//! Whether this process may download.

use std::sync::atomic::{AtomicBool, Ordering};

static REFUSED: AtomicBool = AtomicBool::new(false);

/// Refuses every download of this process from now on, as `BF16SCOPE_OFFLINE` does: what `--offline` says.
pub fn refuse_downloads() {
    REFUSED.store(true, Ordering::Relaxed);
}

/// Whether downloads are refused: by [`refuse_downloads`], or by `BF16SCOPE_OFFLINE` unless that is empty or `0`.
pub fn is_offline() -> bool {
    let by_environment =
        || std::env::var_os("BF16SCOPE_OFFLINE").is_some_and(|value| !value.is_empty() && value != "0");
    REFUSED.load(Ordering::Relaxed) || by_environment()
}
