//! The decision: in which dtype a node computes, in which its value is stored, and why.
//!
//! [`decide`] is a pure function of what is known of the node, its [`Facts`], as if every result were materialised.
//! `assign` then decides again where values stay in registers (`fused`, `materialised`). Data movement
//! (class clear) takes the dtype of what is around it, which `moves` finds once all other nodes are decided.

use super::dataflow::NodeId;
use super::policy::Reach;
use bf16scope_hlo::ops::precision::Class;

/// Declares the reasons for a decision, each with words that fit behind "because"; further variants of the enum, and arms
/// with their words, come first.
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident [$($more:tt)*] { $($arm:tt)* } $($reason:ident = $why:literal;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $name { $(#[doc = $why] $reason,)* $($more)* }

        impl $name {
            /// All that have words of their own.
            pub(super) const REASONS: &[$name] = &[$($name::$reason,)*];

            /// The words; empty where the op's class or the policy has the reason.
            pub(super) const fn why(self) -> &'static str {
                match self { $($name::$reason => $why,)* $($arm)* }
            }
        }
    };
}

reasons! {
    /// Why the result of a node has to be f32 for one of its consumers.
    Need [] {}
    Choice = "a discrete choice that the program goes on with depends on it";
    Recurrence = "a recurrence multiplies by it or adds it up at every step, so that one rounding becomes one per step";
    Angle = "a sine or cosine reads it, and it was computed in f32: rounded, the angle would lose its absolute \
             precision";
    Decomposition = "a decomposition, a solve or a transform in f32 reads it as a matrix, which rounding may make \
                     indefinite or singular, or gives it, so large that it cancels";
    Cancellation = "it is subtracted from what nearly equals it, as in ‖a‖² + ‖b‖² − 2ab, xᵢ − xⱼ or log(1 − p), \
                    and the difference is small";
    Exponent = "an exponential reads it, and it is computed from a running sum, whose rounding error is \
                proportional to all that was added up";
    Power = "it is raised to a large power, by itself or by squares of squares, which multiplies its rounding by \
             the exponent";
    Position = "positions are added to it or subtracted from it, and a coordinate of hundreds, rounded, is whole \
                places off";
}

/// The facts about a node that decide its dtype.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Its class.
    pub class: Class,
    /// How far the policy reaches.
    pub reach: Reach,
    /// Why it is f32 even between products: the need of a consumer, or an end of the network; and the node that this
    /// comes from.
    pub wide: Option<(Rule, NodeId)>,
    /// Whether every way between products is interrupted here: it is f32 and not lowered.
    pub is_blocked: bool,
    /// A product, or a node that counts as one, that it is computed from.
    pub below: Option<NodeId>,
    /// A product, or a node that counts as one, that is computed from it.
    pub above: Option<NodeId>,
    /// The decision between products if a compiler materialises its result, though its op is always f32 or only moves
    /// data.
    pub stored: Option<Decision>,
    /// Whether the f32 sum of a product is kept.
    pub keeps_sum: bool,
    /// Whether its result is one number: rounding it saves no memory, and in f16 it may be infinite, as the scale of a loss
    /// of 65,536 is.
    pub is_number: bool,
}

/// The decision for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// Whether its operands are narrow.
    pub is_low: bool,
    /// Whether its result is narrow; if the operands are not, it computes in f32 and rounds.
    pub is_narrow: bool,
    /// Why.
    pub rule: Rule,
    /// The node that this comes from.
    pub from: Option<NodeId>,
}

impl Decision {
    /// It computes in f32, and its result is f32.
    pub(super) const fn f32(rule: Rule, from: Option<NodeId>) -> Decision {
        Decision { is_low: false, is_narrow: false, rule, from }
    }

    /// It computes in f32, and its result is rounded once for all consumers.
    pub(super) const fn rounded(rule: Rule, from: Option<NodeId>) -> Decision {
        Decision { is_narrow: true, ..Decision::f32(rule, from) }
    }

    /// It computes in the narrow dtype.
    pub(super) const fn narrow(rule: Rule, from: Option<NodeId>) -> Decision {
        Decision { is_low: true, ..Decision::rounded(rule, from) }
    }
}

/// Decides for an op, as if its result were materialised. The first matching row decides; `reasons!` has the sentences.
pub(super) fn decide(facts: &Facts) -> Decision {
    use Class::{Allow, Clear, Deny, Infer, NotFloat};
    let is_between = facts.below.is_some() && facts.above.is_some() && !facts.is_blocked;
    let is_open = facts.reach == Reach::All && !facts.is_blocked;
    let stored = facts.stored.filter(|_| is_between && facts.reach != Reach::None);
    match (facts.class, facts.wide) {
        (NotFloat, _) => Decision::f32(Rule::Fixed, None),
        (Allow | Infer | Clear, _) if facts.reach == Reach::None => Decision::f32(Rule::Off, None),
        (Allow | Infer, Some((rule, from))) => Decision::f32(rule, Some(from)),
        (Allow, _) => Decision { is_narrow: !facts.keeps_sum, ..Decision::narrow(Rule::Allowed, None) },
        (Infer, _) if is_open && !(facts.is_number && facts.below.is_none()) => Decision::narrow(Rule::Reach, None),
        (Infer, _) if is_between && facts.reach == Reach::Between => Decision::narrow(Rule::Between, facts.below),
        (Infer, _) => Decision::f32(Rule::OutOfReach, None),
        (Deny { .. }, _) => stored.unwrap_or(Decision::f32(Rule::Denied, None)),
        (Clear, _) => stored.unwrap_or(Decision::f32(Rule::WouldRound, None)),
    }
}

reasons! {
    /// Why a node computes in its dtype. Beside the rules with words: a consumer needs f32, its class is deny, it cannot be
    /// retyped, it is a source of values (a parameter, a constant, a conversion), the policy decides on the instruction.
    Rule [Needed(Need), Denied, Fixed, Source, Decided] {
        Rule::Needed(need) => need.why(),
        Rule::Source => "it is made in the dtype that its consumers read",
        Rule::Denied | Rule::Fixed | Rule::Decided => "",
    }
    Allowed = "its op is always lowered";
    Loss = "the loss is computed from it";
    Result = "a result of the program, which keeps its dtype, is computed from it";
    Spread = "it is computed from a denied op";
    Between = "it lies between ops that are lowered";
    Reach = "the policy lowers every op of its class";
    OutOfReach = "it does not lie between ops that are lowered";
    Fused = "it is fused into its consumer and never materialised, so a narrow dtype would save no memory";
    RoundedOnce = "it computes in f32 and is rounded once, where it is materialised for all its consumers";
    Moved = "it moves values and is materialised, and one of its consumers is lowered";
    Summed = "it sums values that are narrow already, and both its operand and its result are materialised";
    Logits = "it gives logits as large as any parameter, which the compiler stores";
    Filled = "it writes a slice of an array that a loop fills, and that is materialised between ops that are lowered";
    ReadNarrow = "it commutes with rounding, and all its consumers read the narrow dtype";
    OfNarrow = "it commutes with rounding, and its operands are narrow already";
    WouldRound = "it commutes with rounding, and a narrow result would round for a consumer that reads f32, or \
                  make a cast larger";
    Held = "it holds a parameter back, and the cast stands behind it, so that no cast is kept beside the parameter";
    Lookup = "it looks up rows narrower than a tile in a table that is read again later; an opt-barrier before it \
              keeps the compiler from keeping a copy of the table";
    SumOfParts = "it sums a concatenation, so it is computed from the sums of the parts";
    Off = "the policy lowers nothing";
}
