//! Precision classes: what lowering to bf16 or f16 may do with an op.
//!
//! Which op has which class is in [`decisions`](super::decisions::precision_class); which instruction is lowered in the end
//! is decided by `passes::amp`.
//! Classes speak of f32 values only: integers, f64, complex and values that are narrow already are nobody's business.
//!
//! The classes are TensorFlow's four (`auto_mixed_precision_lists.h`), with two differences that HLO asks for. *Clear*
//! is stricter: only ops that commute with rounding, so that lowering one never adds an error. And sums are denied:
//! HLO's `reduce` has no implicit f32 accumulator, where TensorFlow's `Sum` has one.

/// What lowering may do with an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Gains much and loses little: always lowered. Back ends accumulate its products in f32.
    Allow,
    /// Rounds its result once: lowered among lowered ops, unless what it reads was denied.
    Infer,
    /// Commutes with rounding: moves, selects or compares values. Lowered wherever that adds no error.
    Clear,
    /// Computed in f32.
    Deny {
        /// A clause.
        why: &'static str,
        /// Whether what is computed from its result stays f32 as well, up to the next allowed op.
        spreads: bool,
    },
    /// Holds no floats.
    NotFloat,
}

/// In which dtype devices sum what each computed of an op's result, where a partitioner splits what the op sums over.
/// The partitioner writes an all-reduce, or a reduce-scatter, of the dtype that the op gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSum {
    /// In none: each element of the result is made on one device, or all other devices add zeros to it.
    Never,
    /// In one that may be wider than the operands', as products' results may be.
    Own,
    /// In the operands', which is the result's.
    OfOperands,
}

/// How an op moves numbers, which it gives as it read them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Movement {
    /// It computes others, or chooses among them.
    #[default]
    None,
    /// All of them, each once.
    Places,
    /// Each as often as it is asked for.
    Repeats,
    /// Some of them.
    TakesPart,
    /// Those of several arrays, or of one and what surrounds it, in one array.
    Joins,
}

/// Whether a TPU's compiler stores what an op gives, or makes it in whatever reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// It makes it where it is read, if one op reads it.
    #[default]
    Fused,
    /// It stores it.
    Stored,
    /// It stores it if the op works along the last axis, which lies along the lanes of a tile.
    StoredAlongLanes,
    /// It stores it if a sum reads it and another op, as a softmax does; for a TPU v4 and later ones.
    StoredBesideSum,
}

/// Whether an op makes something discrete of numbers, so that a rounding may turn the result into another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// It does not.
    #[default]
    Never,
    /// It does: an order, or the places of the largest.
    Always,
    /// If it gives several arrays, as the place of a maximum beside it.
    OfSeveral,
    /// If it gives integers.
    OfIntegers,
    /// If it compares which of two is greater.
    OfOrder,
}

/// The factor by which an op amplifies the rounding error of its operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Amplification {
    /// Nothing that depends on the operand.
    #[default]
    None,
    /// The size of an angle.
    Angle,
    /// The size of an exponent.
    Exponent,
    /// A power.
    Power,
    /// The condition of a matrix.
    Matrix,
    /// The largest term of a spectrum.
    Spectrum,
}

impl Choice {
    /// Whether a call chooses, by the name of what it calls: the largest of many, also roughly.
    pub(super) fn of_call(name: &str) -> Choice {
        let name = name.to_ascii_lowercase();
        let is_choice = ["topk", "top_k", "partialreduce"].iter().any(|part| name.contains(part));
        if is_choice { Choice::Always } else { Choice::Never }
    }
}

impl Amplification {
    /// As the table of all ops spells it.
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

    /// The amplification of a call, by its target's name: matrix decompositions and linear solves. Other calls, such as
    /// kernels, are not known to amplify anything.
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
    /// Denied, and so is what follows from it.
    pub(super) const fn deny(why: &'static str) -> Class {
        Class::Deny { why, spreads: true }
    }

    /// Denied by itself: what it gives may be rounded.
    pub(super) const fn island(why: &'static str) -> Class {
        Class::Deny { why, spreads: false }
    }

    /// As reports and policies spell it.
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
