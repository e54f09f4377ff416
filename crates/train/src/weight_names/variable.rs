//! Variables of ours that want values, and arrays of theirs that have some.

use bf16scope_hlo::{ArrayShape, DType};

/// A variable of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// As it is to be stored, whole.
    pub shape: ArrayShape,
    /// What it is for.
    pub role: Role,
}

/// What a variable is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The network reads it.
    Weight,
    /// State of an optimizer about a variable: that, and the slot's name.
    Slot {
        /// The variable.
        of: String,
        /// Our name of the slot.
        slot: String,
    },
    /// The average of a variable.
    Average {
        /// The variable.
        of: String,
    },
    /// What a run makes by itself: states of random numbers, counts.
    Own,
}

/// An array of theirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// Its dtype; nothing of what we have none for, such as strings.
    pub dtype: Option<DType>,
    /// Its dims.
    pub dims: Vec<i64>,
    /// How many of the model's variables its framework numbers before it, where the file says it.
    pub place: Option<usize>,
}

/// What the numbers of a slot are in another framework.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// What they are here.
    #[default]
    Same,
    /// Steps, as Keras' momentum: the learning rate times ours, and negative.
    Step,
}
