//! What is looked for, a function for each cause of [`RULES`](super::anomaly::RULES): by what the numbers are (`finite`), how
//! large they are (`scale`), what reaches the first layers (`gradients`), and what a step makes of it (`updates`).

pub(super) mod finite;
pub(super) mod gradients;
pub(super) mod scale;
pub(super) mod updates;
