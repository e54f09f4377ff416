//! The reasons why a consumer needs its operand in f32.

/// Why the result of a node has to be f32 for one of its consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A discrete choice depends on its value, and the program computes on with the choice.
    Choice,
    /// A recurrence multiplies by it, or adds it up, at every step.
    Recurrence,
    /// A sine or cosine reads it, and it was computed by an op in f32.
    Angle,
    /// A decomposition or a Fourier transform reads it as a matrix, or it is a product of what a solve gives.
    Decomposition,
    /// A sum cancels it, as in ‖a‖² + ‖b‖² − 2ab, or in a difference of neighbours or pairs.
    Cancellation,
    /// An exponential reads it, and it is computed from a running sum.
    Exponent,
    /// It is raised to a large power.
    Power,
    /// Positions are added to it or subtracted from it.
    Position,
}

impl Need {
    /// All needs.
    pub(super) const ALL: [Need; 8] = [
        Need::Choice,
        Need::Recurrence,
        Need::Angle,
        Need::Decomposition,
        Need::Cancellation,
        Need::Exponent,
        Need::Power,
        Need::Position,
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
                "a decomposition, a solve or a transform in f32 reads it as a matrix, which rounding may make indefinite or singular, or gives it, so large that it cancels"
            }
            Need::Cancellation => {
                "it is subtracted from what nearly equals it, as in ‖a‖² + ‖b‖² − 2ab, xᵢ − xⱼ or log(1 − p), and the difference is small"
            }
            Need::Power => {
                "it is raised to a large power, by itself or by squares of squares, which multiplies its rounding by the exponent"
            }
            Need::Position => {
                "positions are added to it or subtracted from it, and a coordinate of hundreds, rounded, is whole places off"
            }
            Need::Exponent => {
                "an exponential reads it, and it is computed from a running sum, whose rounding error is proportional to all that was added up"
            }
        }
    }
}
