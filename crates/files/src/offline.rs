//! Whether this process may download.

use std::sync::atomic::{AtomicBool, Ordering};

static REFUSED: AtomicBool = AtomicBool::new(false);

/// Forbids every download of this process from now on, like `BF16SCOPE_OFFLINE`: the effect of `--offline`.
pub fn refuse_downloads() {
    REFUSED.store(true, Ordering::Relaxed);
}

/// Whether downloads are forbidden: by [`refuse_downloads`], or by `BF16SCOPE_OFFLINE` unless that is empty or `0`.
pub fn is_offline() -> bool {
    let by_environment =
        || std::env::var_os("BF16SCOPE_OFFLINE").is_some_and(|value| !value.is_empty() && value != "0");
    REFUSED.load(Ordering::Relaxed) || by_environment()
}
