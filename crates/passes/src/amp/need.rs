//! The reasons for which a node is f32 for what reads it.

/// Why a node is f32 for what reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A choice that the program computes on with is made by its value.
    Choice,
    /// A recurrence multiplies by it, or adds it up, again and again.
    Recurrence,
    /// A sine or cosine reads it, and an op in f32 made it.
    Angle,
    /// A decomposition or a Fourier transform of a matrix reads it.
    Decomposition,
    /// What it is added to cancels it, as in ‖a‖² + ‖b‖² − 2ab.
    Cancellation,
    /// An exponential reads it, and it comes of a running sum.
    Exponent,
    /// It is raised to a large power.
    Power,
}

impl Need {
    /// All of them.
    pub(super) const ALL: [Need; 7] = [
        Need::Choice,
        Need::Recurrence,
        Need::Angle,
        Need::Decomposition,
        Need::Cancellation,
        Need::Exponent,
        Need::Power,
    ];

    /// A sentence that fits behind "because".
    pub(super) const fn why(self) -> &'static str {
        match self {
            Need::Choice => "a discrete choice that the program goes on with depends on it",
            Need::Recurrence => {
                "a recurrence multiplies by it or adds it up at every step, so that one rounding becomes one per step"
            }
            Need::Angle => {
                "a sine or cosine reads it, and it was computed in f32: rounded, the angle would lose its absolute precision"
            }
            Need::Decomposition => {
                "a decomposition or a transform in f32 reads its matrix, which rounding may make indefinite or singular"
            }
            Need::Cancellation => {
                "it is subtracted from sums of its operands' own products, as in ‖a‖² + ‖b‖² − 2ab, and the difference is small"
            }
            Need::Power => {
                "it is raised to a large power, by itself or by squares of squares, which multiplies its rounding by the exponent"
            }
            Need::Exponent => {
                "an exponential reads it, and it is computed from a running sum, whose rounding error is proportional to all that was added up"
            }
        }
    }
}
