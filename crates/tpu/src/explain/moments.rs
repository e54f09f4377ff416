//! A program's memory in a number of stretches of its schedule, for plots.

use super::origin::{Origin, Origins};
use super::{ExplainError, analyse, live_buffer};
use bf16scope_hlo::Module;

/// The step of a stretch with the most bytes alive.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The step.
    pub step: usize,
    /// Bytes of temporaries alive.
    pub n_bytes: u64,
    /// Its instruction.
    pub instruction: String,
    /// Its origin.
    pub origin: Origin,
    /// The largest buffers alive: bytes, array, and origin.
    pub largest: Vec<(u64, String, Origin)>,
    /// The number of buffers alive.
    pub n_alive: usize,
}

/// The schedule in at most `n_moments` stretches, with `n_largest` buffers in each.
///
/// # Errors
/// Those of [`analyse`].
pub fn moments(module: &Module, n_moments: usize, n_largest: usize) -> Result<Vec<Moment>, ExplainError> {
    let liveness = analyse(module)?;
    let origins = Origins::new(module);
    let n_steps = liveness.steps.len();
    let n_moments = n_moments.min(n_steps);
    let moment = |at: usize| {
        let (from, to) = (at * n_steps / n_moments, (at + 1) * n_steps / n_moments);
        let most = liveness.live[from..to].iter().copied().max().unwrap_or(0);
        let step = (from..to).find(|&step| liveness.live[step] == most).unwrap_or(from);
        let instruction = liveness.instruction(module, step);
        let alive = liveness.alive_at(step);
        let buffer = |&id: &usize| {
            let buffer = live_buffer(module, &liveness, &origins, id, step);
            (buffer.n_bytes, buffer.shape, buffer.origin)
        };
        Moment {
            step,
            n_bytes: most,
            instruction: instruction.name.clone(),
            origin: origins.of_step(&liveness, step).clone(),
            largest: alive.iter().take(n_largest).map(buffer).collect(),
            n_alive: alive.len(),
        }
    };
    Ok((0..n_moments).map(moment).collect())
}
