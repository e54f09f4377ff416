//! The decision: in which dtype a node computes, in which its value is stored, and why.
//!
//! [`decide`] is a pure function of what is known of the node, its [`Facts`]. Data movement (class clear) takes the
//! dtype of what is around it, which `moves` finds once all other nodes are decided.

use super::dataflow::NodeId;
use super::decided::StoredAs;
use super::need::Need;
use super::policy::Reach;
use bf16scope_hlo::ops::precision::Class;

/// The facts about a node that decide its dtype.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// Its class; `None` for a node that is not an op, or cannot be retyped.
    pub class: Option<Class>,
    /// How far the policy reaches.
    pub reach: Reach,
    /// The form, if the policy decides on this instruction.
    pub decided: Option<StoredAs>,
    /// Why it is f32 even between products: the need of a consumer, or an end of the network; and the node that this
    /// comes from.
    pub wide: Option<(Rule, NodeId)>,
    /// Whether every way between products is interrupted here: it is f32 and not lowered.
    pub is_blocked: bool,
    /// A product, or a node that counts as one, that it is computed from.
    pub below: Option<NodeId>,
    /// A product, or a node that counts as one, that is computed from it.
    pub above: Option<NodeId>,
    /// Why a compiler materialises its result, if its class alone does not let it be lowered.
    pub stores: Option<Stores>,
    /// Whether the f32 sum of a product is kept.
    pub keeps_sum: bool,
    /// Where its result is stored.
    pub storage: Storage,
}

/// Results that a compiler materialises, though their op is always f32 or only moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    /// Moved data, such as a gather's.
    Move,
    /// A sum over a small window of arrays that come from products.
    WindowSum,
    /// The sine or cosine of an angle that a product computed, which has no absolute precision to lose.
    Turn,
    /// A value with a sum and another op as consumers, such as the exponential of a softmax.
    Summand,
}

/// Where the result of a node between products is stored until its consumers read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Storage {
    /// In memory.
    #[default]
    Materialised,
    /// In registers: fused into its consumer, by this rule, because of this node.
    Fused(Rule, Option<NodeId>),
    /// In memory, as the end of a fusion or of what leads to the loss: rounded once for all consumers.
    RoundedOnce(Rule, Option<NodeId>),
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

/// Decides for a node. The first matching row decides; `Rule::why` has the sentences, in the order of the rows.
pub(super) fn decide(facts: &Facts) -> Decision {
    use Class::{Allow, Clear, Deny, Infer, NotFloat};
    let f32 = |rule, from| Decision { is_low: false, is_narrow: false, rule, from };
    let rounded = |rule, from| Decision { is_low: false, is_narrow: true, rule, from };
    let narrow = |rule, from| Decision { is_low: true, is_narrow: true, rule, from };
    let is_between = facts.below.is_some() && facts.above.is_some() && !facts.is_blocked;
    let is_open = facts.reach == Reach::All && !facts.is_blocked;
    let known = match (facts.decided, facts.storage) {
        (Some(StoredAs::Narrow), _) => Some(narrow(Rule::Decided, None)),
        (Some(StoredAs::Rounded), _) => Some(rounded(Rule::Decided, None)),
        (_, Storage::Fused(rule, from)) => Some(f32(rule, from)),
        (_, Storage::RoundedOnce(rule, from)) => Some(rounded(rule, from)),
        (_, Storage::Materialised) => None,
    };
    let stores = facts.stores.filter(|_| is_between && facts.reach != Reach::None);
    let materialised = stores.map(|stores| match stores {
        Stores::Move => narrow(Rule::Moved, facts.above),
        Stores::WindowSum => narrow(Rule::Summed, facts.below),
        Stores::Turn => narrow(Rule::Between, facts.below),
        Stores::Summand => rounded(Rule::RoundedOnce, facts.below),
    });
    match (facts.class, known, facts.wide) {
        (None | Some(NotFloat), ..) => f32(Rule::Fixed, None),
        (Some(Allow | Infer | Clear), ..) if facts.reach == Reach::None => f32(Rule::Off, None),
        (Some(Infer | Clear), Some(known), _) => known,
        (Some(Allow | Infer), _, Some((rule, from))) => f32(rule, Some(from)),
        (Some(Allow), ..) => Decision { is_narrow: !facts.keeps_sum, ..narrow(Rule::Allowed, None) },
        (Some(Infer), ..) if is_open => narrow(Rule::Reach, None),
        (Some(Infer), ..) if is_between && facts.reach == Reach::Between => narrow(Rule::Between, facts.below),
        (Some(Infer), ..) => f32(Rule::OutOfReach, None),
        (Some(Deny { .. }), ..) => materialised.unwrap_or(f32(Rule::Denied, None)),
        (Some(Clear), ..) => materialised.unwrap_or(f32(Rule::WouldRound, None)),
    }
}

/// Why a node computes in its dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Its class is allow.
    Allowed,
    /// Its class is deny.
    Denied,
    /// A consumer needs f32.
    Needed(Need),
    /// It leads to a loss.
    Loss,
    /// It leads to a result that keeps its type.
    Result,
    /// It is computed from a denied op that spreads.
    Spread,
    /// It lies between allowed ops.
    Between,
    /// The policy lowers all ops of its class.
    Reach,
    /// It does not lie between allowed ops, or the policy does not reach it.
    OutOfReach,
    /// Its result is fused and never materialised, so rounding it would save no memory.
    Fused,
    /// It computes in f32, and its materialised result is rounded once for all consumers.
    RoundedOnce,
    /// It moves data, its result is materialised, and one of its consumers reads the narrow dtype.
    Moved,
    /// It sums narrow values, and both its operand and its result are materialised.
    Summed,
    /// It computes logits that are as large as any parameter.
    Logits,
    /// It writes a slice of an array that a loop fills, between products.
    Filled,
    /// All its consumers read the narrow dtype.
    ReadNarrow,
    /// Its operands are narrow already.
    OfNarrow,
    /// Lowering it would round for a consumer that reads f32.
    WouldRound,
    /// It is a barrier on a parameter; the cast stands behind it.
    Held,
    /// It looks up rows of a table with narrow rows, behind a barrier.
    Lookup,
    /// It sums, part by part, a narrow concatenation that a product reads, too.
    SumOfParts,
    /// It cannot be retyped.
    Fixed,
    /// It is a source of values: a parameter, a constant, a conversion.
    Source,
    /// The policy lowers nothing.
    Off,
    /// The policy decides on this instruction.
    Decided,
}

impl Rule {
    /// All rules with a reason, except needs.
    pub(super) const REASONS: [Rule; 20] = [
        Rule::Allowed,
        Rule::Loss,
        Rule::Result,
        Rule::Spread,
        Rule::Between,
        Rule::Reach,
        Rule::OutOfReach,
        Rule::Fused,
        Rule::RoundedOnce,
        Rule::Moved,
        Rule::Summed,
        Rule::Logits,
        Rule::Filled,
        Rule::ReadNarrow,
        Rule::OfNarrow,
        Rule::WouldRound,
        Rule::Held,
        Rule::Lookup,
        Rule::SumOfParts,
        Rule::Off,
    ];

    /// The reason, in words that fit behind "because"; empty where the op's class or the policy has the reason.
    pub(super) const fn why(self) -> &'static str {
        match self {
            Rule::Denied | Rule::Fixed | Rule::Decided => "",
            Rule::Off => "the policy lowers nothing",
            Rule::Fused => {
                "it is fused into its consumer and never materialised, so a narrow dtype would save no memory"
            }
            Rule::RoundedOnce => {
                "it computes in f32 and is rounded once, where it is materialised for all its consumers"
            }
            Rule::Needed(need) => need.why(),
            Rule::Loss => "the loss is computed from it",
            Rule::Result => "a result of the program, which keeps its dtype, is computed from it",
            Rule::Spread => "it is computed from a denied op",
            Rule::Allowed => "its op is always lowered",
            Rule::Reach => "the policy lowers every op of its class",
            Rule::Between => "it lies between ops that are lowered",
            Rule::OutOfReach => "it does not lie between ops that are lowered",
            Rule::Summed => {
                "it sums values that are narrow already, and both its operand and its result are materialised"
            }
            Rule::Moved => "it moves values and is materialised, and one of its consumers is lowered",
            Rule::WouldRound => {
                "it commutes with rounding, and a narrow result would round for a consumer that reads f32, or make a cast larger"
            }
            Rule::Logits => "it gives logits as large as any parameter, which the compiler stores",
            Rule::Filled => {
                "it writes a slice of an array that a loop fills, and that is materialised between ops that are lowered"
            }
            Rule::ReadNarrow => "it commutes with rounding, and all its consumers read the narrow dtype",
            Rule::OfNarrow => "it commutes with rounding, and its operands are narrow already",
            Rule::Held => {
                "it holds a parameter back, and the cast stands behind it, so that no cast is kept beside the parameter"
            }
            Rule::Lookup => {
                "it looks up rows narrower than a tile in a table that is read again later; an opt-barrier before it keeps the \
                 compiler from keeping a copy of the table"
            }
            Rule::SumOfParts => "it sums a concatenation, so it is computed from the sums of the parts",
            Rule::Source => "it is made in the dtype that its consumers read",
        }
    }
}
