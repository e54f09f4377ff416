//! The estimated time of a step, the same for all commands: the cycles of its scheduled program at the core's clock,
//! followed by its collectives.
//!
//! The compiler gives cycles for the instructions it schedules, except for collectives, which [`Links`] models. The
//! compiler's other figure, `optimal_seconds`, is a lower bound from flops and bytes; it is displayed under that name,
//! and never used for a rate. `docs/ESTIMATES.md` compares the estimate with published runs; [`SPREAD`] is the result.

use serde::{Deserialize, Serialize};

use super::Target;
use super::collectives::Collective;
use super::explain::Rates;
use super::links::Links;
use bf16scope_hlo::devices::Devices;

/// The estimated time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepTime {
    /// The sum of compute, collectives and latency.
    pub seconds: f64,
    /// Cycles at the core's clock.
    pub compute_seconds: f64,
    /// The collectives.
    pub collective_seconds: f64,
    /// The latency of a step and its collectives, independent of their computation and bytes; modelled only in a
    /// `plan`.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub latency_seconds: f64,
}

fn is_nothing(seconds: &f64) -> bool {
    *seconds == 0.0
}

impl StepTime {
    /// From the cycles of a core of the target, and the seconds of collectives. `None` if the target's clock is
    /// unknown, or if there is nothing to time.
    pub fn new(target: &Target, cycles: f64, collective_seconds: Option<f64>) -> Option<StepTime> {
        // The sum of no collectives is -0.0.
        let (compute_seconds, collective_seconds) =
            (cycles / Rates::for_target(target)?.cycles, collective_seconds? + 0.0);
        let seconds = compute_seconds + collective_seconds;
        (seconds > 0.0).then_some(StepTime { seconds, compute_seconds, collective_seconds, latency_seconds: 0.0 })
    }

    /// The same with this latency added.
    pub(super) fn with_latency(self, latency_seconds: f64) -> StepTime {
        StepTime { seconds: self.seconds + latency_seconds, latency_seconds, ..self }
    }
}

/// The ratio of published to estimated step times, least and greatest: the error of such an estimate. From the table of
/// `docs/ESTIMATES.md`: 1 ÷ 1.02 (flax on a v3-8) to 1 ÷ 0.68 (flax on a v3-32).
pub const SPREAD: (f64, f64) = (0.98, 1.48);

/// Sets the time of each collective, if it is known.
pub(super) fn time(collectives: &mut [Collective], target: &Target, devices: Devices) {
    let links = Links::for_target(target);
    for collective in collectives {
        collective.seconds = links.map(|links| links.seconds(collective, devices));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_cycles_at_the_clock_and_then_its_collectives() {
        let times = |target: &str, cycles, collectives| {
            let step = StepTime::new(&target.parse().unwrap(), cycles, collectives);
            step.map(|step| (step.seconds, step.compute_seconds, step.collective_seconds))
        };
        assert_eq!(times("tpu-v2", 70e6, Some(0.0)), Some((0.1, 0.1, 0.0)));
        assert_eq!(times("tpu-v3", 94e6, Some(0.025)), Some((0.125, 0.1, 0.025)));
        // Without collectives: `-0.0` in JSON.
        let (_, _, none) = times("tpu-v3", 94e6, Some(std::iter::empty::<f64>().sum())).unwrap();
        assert!(none == 0.0 && none.is_sign_positive());
        // Unknown clock, no model of the links, nothing to time.
        assert_eq!(times("tpu-v4", 94e6, Some(0.0)), None);
        assert_eq!(times("tpu-v3", 94e6, None), None);
        assert_eq!(times("tpu-v3", 0.0, Some(0.0)), None);
        assert_eq!(StepTime::new(&Target::Cpu, 94e6, Some(0.0)), None);
    }
}
