//! The rules of [`RULES`](super::anomaly::RULES), one function for each cause: non-finite numbers (`finite`), sizes
//! (`scale`), gradients that do not reach the first layers (`gradients`), and updates (`updates`).

pub(super) mod finite;
pub(super) mod gradients;
pub(super) mod scale;
pub(super) mod updates;

#[cfg(test)]
mod tests;
