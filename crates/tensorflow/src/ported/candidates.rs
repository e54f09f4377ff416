//! Optimizers that an update of plain ops may be, of single numbers, by the formulas of the experiment's own.

use super::symbols::{shortest, yaml_number};

/// An optimizer with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Candidate {
    Sgd,
    Momentum {
        momentum: f64,
        nesterov: bool,
    },
    Adam {
        betas: [f64; 2],
        epsilon: f64,
        epsilon_hat: bool,
        is_corrected: bool,
        amsgrad: bool,
    },
    Adamax {
        betas: [f64; 2],
        epsilon: f64,
    },
    Lion {
        betas: [f64; 2],
    },
    RmsProp {
        decay: f64,
        momentum: f64,
        epsilon: f64,
        centered: bool,
        start: f64,
    },
    SumOfSquares {
        epsilon: f64,
        start: f64,
    },
    Adadelta {
        rho: f64,
        epsilon: f64,
    },
    /// `power` is that of the sums, minus the learning rate's.
    Ftrl {
        power: f64,
        strengths: [f64; 2],
        shrinkage: f64,
        start: f64,
    },
}

/// Slots of one element, as each optimizer uses them.
pub(super) type Slots = [f64; 3];

/// All optimizers with numbers of these. `start` is where a sum of squares begins.
pub(super) fn candidates(constants: &[f64], start: f64) -> Vec<Candidate> {
    let mut shares: Vec<f64> = constants.iter().copied().filter(|x| *x < 1.0).collect();
    shares.extend(shares.clone().iter().map(|share| shortest((1.0 - share) as f32)));
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    let epsilons: Vec<f64> = constants.iter().copied().filter(|x| *x <= 1.0).collect();
    let mut all = vec![Candidate::Sgd];
    all.extend([0.0].iter().chain(&epsilons).map(|epsilon| Candidate::SumOfSquares { epsilon: *epsilon, start }));
    all.extend(ftrl(constants, start));
    for &first in &shares {
        all.extend([false, true].map(|nesterov| Candidate::Momentum { momentum: first, nesterov }));
        for &epsilon in &epsilons {
            all.push(Candidate::Adadelta { rho: first, epsilon });
            for momentum in [0.0].iter().chain(&shares) {
                let (decay, momentum) = (first, *momentum);
                all.extend([false, true].map(|centered| Candidate::RmsProp {
                    decay,
                    momentum,
                    epsilon,
                    centered,
                    start,
                }));
            }
        }
        for betas in shares.iter().map(|second| [first, *second]) {
            all.push(Candidate::Lion { betas });
            for &epsilon in &epsilons {
                all.push(Candidate::Adamax { betas, epsilon });
                for (epsilon_hat, is_corrected) in [(true, true), (false, true), (false, false)] {
                    all.extend([false, true].map(|amsgrad| Candidate::Adam {
                        betas,
                        epsilon,
                        epsilon_hat,
                        is_corrected,
                        amsgrad,
                    }));
                }
            }
        }
    }
    all
}

/// Ftrl has a sum of squares that begins above 0, and four numbers: one after the other is tried beside its defaults, and all
/// strengths at its usual power.
fn ftrl(constants: &[f64], start: f64) -> Vec<Candidate> {
    const POWER: f64 = 0.5;
    let strengths: Vec<f64> = std::iter::once(0.0).chain(constants.iter().copied()).collect();
    let pairs = || strengths.iter().flat_map(|l1| strengths.iter().map(move |l2| [*l1, *l2]));
    let one = |power: f64, strengths: [f64; 2], shrinkage: f64| Candidate::Ftrl { power, strengths, shrinkage, start };
    let mut all: Vec<Candidate> = Vec::new();
    if start > 0.0 {
        all.extend(pairs().map(|pair| one(POWER, pair, 0.0)));
        all.extend(constants.iter().map(|power| one(*power, [0.0; 2], 0.0)));
        // The graph has twice the number.
        let shrinkages = || constants.iter().map(|twice| shortest((twice / 2.0) as f32));
        all.extend(
            shrinkages()
                .flat_map(|shrinkage| pairs().map(move |pair| (shrinkage, pair)))
                .map(|(shrinkage, pair)| one(POWER, pair, shrinkage)),
        );
    }
    all
}

impl Candidate {
    pub(super) fn slots(self) -> Slots {
        match self {
            Candidate::RmsProp { start, .. }
            | Candidate::SumOfSquares { start, .. }
            | Candidate::Ftrl { start, .. } => [start, 0.0, 0.0],
            _ => [0.0; 3],
        }
    }

    /// Whether `weight_decay` stands beside its change without a key that says so.
    pub(super) fn has_decay_beside(self) -> bool {
        matches!(self, Candidate::Lion { .. } | Candidate::Adam { .. })
    }

    /// Changes the slots, and returns what a step subtracts from the variable, whose value is known. The first step is 0.
    pub(super) fn step(self, slots: &mut Slots, value: f64, gradient: f64, rate: f64, step: u32) -> f64 {
        let g = gradient;
        let mean = |slot: &mut f64, share: f64, new: f64| {
            *slot = share * *slot + (1.0 - share) * new;
            *slot
        };
        let [first, second, third] = slots;
        let corrections = |betas: [f64; 2]| betas.map(|beta| 1.0 - beta.powf(f64::from(step) + 1.0));
        match self {
            Candidate::Sgd => rate * g,
            Candidate::Momentum { momentum, nesterov } => {
                *first = momentum * *first + g;
                rate * if nesterov { g + momentum * *first } else { *first }
            }
            Candidate::Adam { betas, epsilon, epsilon_hat, is_corrected, amsgrad } => {
                let (m, v) = (mean(first, betas[0], g), mean(second, betas[1], g * g));
                *third = third.max(v);
                let v = if amsgrad { *third } else { v };
                let [one, two] = if is_corrected { corrections(betas) } else { [1.0; 2] };
                match epsilon_hat {
                    true => rate * two.sqrt() / one * m / (v.sqrt() + epsilon),
                    false => rate * (m / one) / ((v / two).sqrt() + epsilon),
                }
            }
            Candidate::Adamax { betas, epsilon } => {
                let m = mean(first, betas[0], g);
                *second = (betas[1] * *second).max(g.abs());
                rate * (m / corrections(betas)[0]) / (*second + epsilon)
            }
            Candidate::Lion { betas } => {
                let direction = (betas[0] * *first + (1.0 - betas[0]) * g).signum();
                mean(first, betas[1], g);
                rate * direction
            }
            Candidate::RmsProp { decay, momentum, epsilon, centered, .. } => {
                let square = mean(first, decay, g * g);
                let center = if centered { mean(second, decay, g) } else { 0.0 };
                *third = momentum * *third + rate * g / (square - center * center + epsilon).sqrt();
                *third
            }
            Candidate::SumOfSquares { epsilon, .. } => {
                *first += g * g;
                rate * g / (*first + epsilon).sqrt()
            }
            Candidate::Adadelta { rho, epsilon } => {
                let square = mean(first, rho, g * g);
                let change = g * (*second + epsilon).sqrt() / (square + epsilon).sqrt();
                mean(second, rho, change * change);
                rate * change
            }
            Candidate::Ftrl { power, strengths: [l1, l2], shrinkage, .. } => {
                let before = *first;
                *first += g * g;
                let root = first.powf(power);
                *second += g + 2.0 * shrinkage * value - (root - before.powf(power)) / rate * value;
                value - (second.clamp(-l1, l1) - *second) / (root / rate + 2.0 * l2)
            }
        }
    }

    /// The optimizer in YAML; `decays` if variables decay beside its change.
    pub(super) fn words(self, decays: bool) -> String {
        let two = |betas: [f64; 2]| format!("beta1: {}, beta2: {}", yaml_number(betas[0]), yaml_number(betas[1]));
        let n = yaml_number;
        let inside = match self {
            Candidate::Sgd => "sgd".to_string(),
            Candidate::Momentum { momentum, nesterov } => {
                format!("momentum, momentum: {}{}", n(momentum), if nesterov { ", nesterov: true" } else { "" })
            }
            Candidate::Adam { betas, epsilon, epsilon_hat, is_corrected, amsgrad } => {
                let kind = if decays || !is_corrected { "adamw" } else { "adam" };
                let hat = if epsilon_hat { ", epsilon_hat: true" } else { "" };
                let correction = if is_corrected { "" } else { ", bias_correction: false" };
                let largest = if amsgrad { ", amsgrad: true" } else { "" };
                format!("{kind}, {}, epsilon: {}{hat}{correction}{largest}", two(betas), n(epsilon))
            }
            Candidate::Adamax { betas, epsilon } => format!("adamax, {}, epsilon: {}", two(betas), n(epsilon)),
            Candidate::Lion { betas } => format!("lion, {}", two(betas)),
            Candidate::RmsProp { decay, momentum, epsilon, centered, start } => {
                let center = if centered { ", centered: true" } else { "" };
                let numbers = format!("decay: {}, momentum: {}, epsilon: {}", n(decay), n(momentum), n(epsilon));
                format!("rmsprop, {numbers}{center}, initial_accumulator_value: {}", n(start))
            }
            // The sum's start is often not in the graph; TensorFlow's, Keras' and ours are the same.
            Candidate::SumOfSquares { epsilon, start: 0.0 } => format!("adagrad, epsilon: {}", n(epsilon)),
            Candidate::SumOfSquares { epsilon, start } => {
                format!("adagrad, epsilon: {}, initial_accumulator_value: {}", n(epsilon), n(shortest(start as f32)))
            }
            Candidate::Adadelta { rho, epsilon } => format!("adadelta, rho: {}, epsilon: {}", n(rho), n(epsilon)),
            Candidate::Ftrl { power, strengths, shrinkage, start } => {
                let numbers = [
                    ("initial_accumulator_value", shortest(start as f32)),
                    ("l1_regularization_strength", strengths[0]),
                    ("l2_regularization_strength", strengths[1]),
                    ("l2_shrinkage_regularization_strength", shrinkage),
                ];
                let shown = numbers.iter().filter(|(_, number)| *number > 0.0);
                let options: String = shown.map(|(key, number)| format!(", {key}: {}", n(*number))).collect();
                format!("ftrl, learning_rate_power: {}{options}", n(-power))
            }
        };
        format!("{{kind: {inside}}}")
    }
}
