//! Precision classes: how lowering to bf16 or f16 may treat an op.
//!
//! The class of each op is in [`decisions`](super::decisions::precision_class); `passes::amp` decides which
//! instructions are lowered. Classes are about f32 values only: integers, f64, complex and narrow values are not
//! affected.
//!
//! The classes are TensorFlow's four (`auto_mixed_precision_lists.h`), with two differences that HLO requires. *Clear*
//! is stricter: only ops that commute with rounding, so that lowering one never adds an error. And sums are denied:
//! HLO's `reduce` has no implicit f32 accumulator, as TensorFlow's `Sum` has.

/// How lowering may treat an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Large gain, small loss: always lowered. Back ends accumulate its products in f32.
    Allow,
    /// It rounds its result once: lowered among lowered ops, unless an operand was denied.
    Infer,
    /// It commutes with rounding: it moves, selects or compares values. Lowered wherever that adds no error.
    Clear,
    /// Computed in f32.
    Deny {
        /// The reason, as a clause.
        why: &'static str,
        /// Whether ops on its result stay f32 as well, up to the next allowed op.
        spreads: bool,
    },
    /// It has no floating-point values.
    NotFloat,
}

/// The dtype in which devices sum partial results, if a partitioner splits the dimension that the op sums over. The
/// partitioner inserts an all-reduce, or a reduce-scatter, in the dtype of the op's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSum {
    /// They never sum: each element of the result is computed on one device, or all other devices add zeros to it.
    Never,
    /// A dtype that may be wider than the operands', as for the results of products.
    Own,
    /// The operands' dtype, which is the result's.
    OfOperands,
}

/// How an op moves data without changing values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Movement {
    /// It does not: it computes new values, or chooses among values.
    #[default]
    None,
    /// It places all elements, each once.
    Places,
    /// It repeats elements.
    Repeats,
    /// It takes some of the elements.
    TakesPart,
    /// It joins elements of several arrays, or of one and its padding, in one array.
    Joins,
}

/// Whether a TPU's compiler materialises the result of an op, or fuses the op into its consumers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// It fuses the op into its consumer, if there is one.
    #[default]
    Fused,
    /// It materialises the result.
    Stored,
    /// It materialises the result if the op works along the last axis, which is that of a tile's lanes.
    StoredAlongLanes,
    /// It materialises the result if a sum and another op read it, as in a softmax; for a TPU v4 and later.
    StoredBesideSum,
}

/// Whether an op computes a discrete value from numbers, so that a rounding may change the result to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// It does not.
    #[default]
    Never,
    /// It does: an order, or the positions of the largest values.
    Always,
    /// If it has several results, such as the index of a maximum beside the maximum.
    OfSeveral,
    /// If its result is of integers.
    OfIntegers,
    /// If it compares which of two is greater.
    OfOrder,
}

/// The factor by which an op amplifies the rounding error of its operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Amplification {
    /// A factor that does not depend on the operand.
    #[default]
    None,
    /// The size of the operand, as an angle.
    Angle,
    /// The size of the operand, as an exponent.
    Exponent,
    /// The exponent of a power.
    Power,
    /// The condition number of a matrix.
    Matrix,
    /// The largest term of a spectrum.
    Spectrum,
}

impl Choice {
    /// Whether a call chooses, by the name of its target: the largest of many, also approximately.
    pub(super) fn of_call(name: &str) -> Choice {
        let name = name.to_ascii_lowercase();
        let is_choice = ["topk", "top_k", "partialreduce"].iter().any(|part| name.contains(part));
        if is_choice { Choice::Always } else { Choice::Never }
    }
}

impl Amplification {
    /// The spelling in the table of all ops.
    pub const fn name(self) -> &'static str {
        match self {
            Amplification::None => "",
            Amplification::Angle => "angle",
            Amplification::Exponent => "exponent",
            Amplification::Power => "power",
            Amplification::Matrix => "matrix",
            Amplification::Spectrum => "spectrum",
        }
    }

    /// The amplification of a call, by its target's name: matrix decompositions and linear solves. Other calls, such
    /// as kernels, are not known to amplify errors.
    pub(super) fn of_call(name: &str) -> Amplification {
        const WHOLE: [&str; 2] = ["qr", "lu"];
        const PARTS: [&str; 20] = [
            "cholesky",
            "decomposition",
            "eigh",
            "geev",
            "gees",
            "gehrd",
            "geqrf",
            "gesdd",
            "gesvd",
            "getrf",
            "gtsv",
            "heevd",
            "hetrd",
            "householder",
            "orgqr",
            "potrf",
            "syevd",
            "sytrd",
            "triangular",
            "trsm",
        ];
        let name = name.to_ascii_lowercase();
        if name == "fft" {
            Amplification::Spectrum
        } else if WHOLE.contains(&&name[..]) || PARTS.iter().any(|part| name.contains(part)) {
            Amplification::Matrix
        } else {
            Amplification::None
        }
    }
}

impl Class {
    /// Denied, and so are ops on its result.
    pub(super) const fn deny(why: &'static str) -> Class {
        Class::Deny { why, spreads: true }
    }

    /// Denied by itself: its result may be rounded.
    pub const fn island(why: &'static str) -> Class {
        Class::Deny { why, spreads: false }
    }

    /// The spelling in reports and policies.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Allow => "allow",
            Class::Infer => "infer",
            Class::Clear => "clear",
            Class::Deny { spreads: true, .. } => "deny",
            Class::Deny { spreads: false, .. } => "island",
            Class::NotFloat => "not-float",
        }
    }
}
