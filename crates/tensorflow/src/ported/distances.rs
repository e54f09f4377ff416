//! Losses of a prediction and its label, or of a row of classes, as formulas: the losses of an experiment that plain ops may compute.

use std::collections::BTreeSet;

use super::symbols::yaml_number;

/// A loss of one prediction and one label, or of a row of each, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distance {
    Squared,
    Absolute,
    Percentage,
    /// A percentage without its factor, which Keras multiplies the mean by.
    Share,
    Logarithmic,
    LogCosh,
    Hinge,
    SquaredHinge,
    Poisson,
    Sigmoid,
    Huber {
        delta: f64,
    },
    Quantile {
        tau: f64,
    },
    SigmoidFocal {
        gamma: f64,
        alpha: Option<f64>,
    },
    Softmax,
    KlDivergence,
    Cosine,
    /// 1 less the cosine, as `tf.losses` has it.
    OneLessCosine,
    CategoricalHinge,
    SoftmaxFocal {
        gamma: f64,
        alpha: Option<f64>,
    },
}

/// The labels at which a loss is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Labels {
    Numbers,
    Classes,
    Rows,
    OneHot,
    Distributions,
}

/// Predictions at which losses are compared.
const PREDICTIONS: [f64; 7] = [-2.5, -1.0, -0.3, 0.15, 0.6, 1.7, 4.0];
/// Labels of losses of numbers, and of losses of two classes.
const NUMBERS: [f64; 5] = [-1.5, 0.0, 0.25, 1.0, 3.0];
const CLASSES: [f64; 2] = [0.0, 1.0];
/// Rows of predictions, and labels of numbers, of classes and of shares.
const SCORES: [[f64; 4]; 4] =
    [[0.3, -1.2, 0.7, 0.1], [2.0, 0.5, -0.4, 1.1], [-0.6, -0.2, -1.5, 0.9], [1.3, -2.0, 0.0, -0.8]];
const ROWS: [[f64; 4]; 3] = [[0.4, 1.5, -0.7, 2.0], [-1.0, 0.2, 0.6, 0.3], [1.1, -0.9, 0.8, -1.4]];
const ONE_HOT: [[f64; 4]; 3] = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]];
const DISTRIBUTIONS: [[f64; 4]; 3] = [[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.15, 0.05], [0.25, 0.25, 0.2, 0.3]];
/// Keras' ε.
const EPSILON: f64 = 1e-7;
/// So many of a graph's numbers are tried, the smallest first.
const MAX_CONSTANTS: usize = 16;

impl Labels {
    pub(super) const ALL: [Labels; 5] =
        [Labels::Numbers, Labels::Classes, Labels::Rows, Labels::OneHot, Labels::Distributions];

    /// Predictions and labels at which losses are compared.
    pub(super) fn cases(self) -> Vec<(Vec<f64>, Vec<f64>)> {
        let single = |labels: &[f64]| {
            let beside = |x: f64| labels.iter().map(move |y| (vec![x], vec![*y])).collect::<Vec<_>>();
            PREDICTIONS.iter().flat_map(|x| beside(*x)).collect()
        };
        let rows = |labels: &[[f64; 4]]| {
            let beside = |x: [f64; 4]| labels.iter().map(move |y| (x.to_vec(), y.to_vec())).collect::<Vec<_>>();
            SCORES.iter().flat_map(|x| beside(*x)).collect()
        };
        match self {
            Labels::Numbers => single(&NUMBERS),
            Labels::Classes => single(&CLASSES),
            Labels::Rows => rows(&ROWS),
            Labels::OneHot => rows(&ONE_HOT),
            Labels::Distributions => rows(&DISTRIBUTIONS),
        }
    }

    /// Whether a label is a row.
    pub(super) fn is_of_rows(self) -> bool {
        !matches!(self, Labels::Numbers | Labels::Classes)
    }
}

impl Distance {
    /// All losses with numbers of these.
    pub(super) fn all(constants: &BTreeSet<u64>) -> Vec<Distance> {
        use Distance as D;
        let mut all = vec![D::Squared, D::Absolute, D::Percentage, D::Share, D::Logarithmic, D::LogCosh];
        all.extend([D::Hinge, D::SquaredHinge, D::Poisson, D::Sigmoid]);
        all.extend([D::Softmax, D::KlDivergence, D::Cosine, D::OneLessCosine, D::CategoricalHinge]);
        for number in positive(constants) {
            all.push(D::Huber { delta: number });
            if number < 1.0 {
                all.push(D::Quantile { tau: number });
            }
        }
        all
    }

    /// All focal losses with numbers of these. A square has no number.
    pub(super) fn focal(constants: &BTreeSet<u64>) -> Vec<Distance> {
        use Distance as D;
        // A smaller power is an ε, by which a focal loss is the cross-entropy.
        let gammas = positive(constants).filter(|gamma| *gamma >= 0.01).chain([1.0, 2.0]);
        let alphas = || std::iter::once(None).chain(positive(constants).filter(|alpha| *alpha < 1.0).map(Some));
        let pairs = gammas.flat_map(|gamma| alphas().map(move |alpha| (gamma, alpha)));
        pairs.flat_map(|(gamma, alpha)| [D::SigmoidFocal { gamma, alpha }, D::SoftmaxFocal { gamma, alpha }]).collect()
    }

    pub(super) fn labels(self) -> Labels {
        match self {
            Distance::Hinge | Distance::SquaredHinge | Distance::Sigmoid | Distance::SigmoidFocal { .. } => {
                Labels::Classes
            }
            Distance::Softmax | Distance::KlDivergence | Distance::SoftmaxFocal { .. } => Labels::Distributions,
            Distance::Cosine | Distance::OneLessCosine => Labels::Rows,
            Distance::CategoricalHinge => Labels::OneHot,
            _ => Labels::Numbers,
        }
    }

    /// Whether labels of -1 and 1 are made of those of two classes in a condition.
    pub(super) fn may_convert(self) -> bool {
        matches!(self, Distance::Hinge | Distance::SquaredHinge)
    }

    /// The word's loss is so many times as large.
    pub(super) fn factor(self) -> f64 {
        if self == Distance::Share { 100.0 } else { 1.0 }
    }

    /// It is so much above the word's loss.
    pub(super) fn offset(self) -> f64 {
        if self == Distance::OneLessCosine { 1.0 } else { 0.0 }
    }

    pub(super) fn value(self, predictions: &[f64], labels: &[f64]) -> f64 {
        let [x, y] = [predictions, labels].map(|row| row.first().copied().unwrap_or(f64::NAN));
        let distance = (x - y).abs();
        let logarithm = |x: f64| x.max(EPSILON).ln_1p();
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let hinge = (1.0 - (2.0 * y - 1.0) * x).max(0.0);
        let pairs = || predictions.iter().zip(labels);
        let length = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
        let cosine = || pairs().map(|(x, y)| x * y).sum::<f64>() / (length(predictions) * length(labels));
        let norm = || predictions.iter().map(|x| x.exp()).sum::<f64>().ln();
        match self {
            Distance::Squared => distance * distance,
            Distance::Absolute => distance,
            Distance::Percentage => 100.0 * distance / y.abs().max(EPSILON),
            Distance::Share => distance / y.abs().max(EPSILON),
            Distance::Logarithmic => (logarithm(x) - logarithm(y)).powi(2),
            Distance::LogCosh => distance + softplus(-2.0 * distance) - std::f64::consts::LN_2,
            Distance::Hinge => hinge,
            Distance::SquaredHinge => hinge * hinge,
            Distance::Poisson => x - y * (x + EPSILON).ln(),
            Distance::Sigmoid => softplus(x) - x * y,
            Distance::Huber { delta } if distance <= delta => distance * distance / 2.0,
            Distance::Huber { delta } => delta * distance - delta * delta / 2.0,
            Distance::Quantile { tau } => (tau * (y - x)).max((tau - 1.0) * (y - x)),
            Distance::SigmoidFocal { gamma, alpha } => {
                let share = alpha.map_or(1.0, |alpha| if y == 1.0 { alpha } else { 1.0 - alpha });
                let entropy = softplus(x) - x * y;
                share * (1.0 - (-entropy).exp()).powf(gamma) * entropy
            }
            Distance::Softmax => pairs().map(|(x, y)| y * (norm() - x)).sum(),
            Distance::KlDivergence => pairs().map(|(x, y)| y * (y.ln() - x + norm())).sum(),
            Distance::Cosine => -cosine(),
            Distance::OneLessCosine => 1.0 - cosine(),
            Distance::CategoricalHinge => {
                let score: f64 = pairs().map(|(x, y)| x * y).sum();
                let highest = pairs().map(|(x, y)| (1.0 - y) * x).fold(f64::NEG_INFINITY, f64::max);
                (1.0 + highest - score).max(0.0)
            }
            Distance::SoftmaxFocal { gamma, alpha } => {
                let term = |logarithm: f64| (1.0 - logarithm.exp()).powf(gamma) * -logarithm;
                alpha.unwrap_or(1.0) * pairs().map(|(x, y)| y * term(x - norm())).sum::<f64>()
            }
        }
    }

    pub(super) fn words(self) -> (&'static str, Vec<(&'static str, String)>) {
        match self {
            Distance::Squared => ("mean_squared_error", Vec::new()),
            Distance::Absolute => ("mean_absolute_error", Vec::new()),
            Distance::Percentage | Distance::Share => ("mean_absolute_percentage_error", Vec::new()),
            Distance::Logarithmic => ("mean_squared_logarithmic_error", Vec::new()),
            Distance::LogCosh => ("log_cosh", Vec::new()),
            Distance::Hinge => ("hinge", Vec::new()),
            Distance::SquaredHinge => ("squared_hinge", Vec::new()),
            Distance::Poisson => ("poisson", Vec::new()),
            Distance::Sigmoid => ("sigmoid_cross_entropy", Vec::new()),
            Distance::Huber { delta } => ("huber", vec![("delta", yaml_number(delta))]),
            Distance::Quantile { tau } => ("quantile", vec![("tau", yaml_number(tau))]),
            Distance::SigmoidFocal { gamma, alpha } => ("sigmoid_focal_cross_entropy", focal_options(gamma, alpha)),
            Distance::Softmax => ("softmax_cross_entropy", Vec::new()),
            Distance::KlDivergence => ("kl_divergence", Vec::new()),
            Distance::Cosine | Distance::OneLessCosine => ("cosine_similarity", Vec::new()),
            Distance::CategoricalHinge => ("categorical_hinge", Vec::new()),
            Distance::SoftmaxFocal { gamma, alpha } => ("softmax_focal_cross_entropy", focal_options(gamma, alpha)),
        }
    }
}

/// The options of a focal loss, whose words have other numbers where it has none.
pub(super) fn focal_options(gamma: f64, alpha: Option<f64>) -> Vec<(&'static str, String)> {
    let alpha = alpha.map_or_else(|| "null".to_string(), yaml_number);
    vec![("gamma", yaml_number(gamma)), ("alpha", alpha)]
}

/// The smallest numbers above 0 of a graph.
fn positive(constants: &BTreeSet<u64>) -> impl Iterator<Item = f64> {
    constants.iter().map(|bits| f64::from_bits(*bits)).filter(|x| *x > 0.0).take(MAX_CONSTANTS)
}
