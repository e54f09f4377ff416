//! Our variables, and the arrays of a file.

use bf16scope_hlo::{ArrayShape, DType};

/// A variable that needs values.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Its whole shape, in the dtype of its storage.
    pub shape: ArrayShape,
    /// Its role.
    pub role: Role,
}

/// The role of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A weight: the network reads it.
    Weight,
    /// Optimizer state of a variable.
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
    /// State that every run creates itself: random states, counts.
    Own,
}

/// An array of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// Its name.
    pub name: String,
    /// Its aliases.
    pub aliases: Vec<String>,
    /// Its dtype; `None` if we have none for it, such as strings.
    pub dtype: Option<DType>,
    /// Its dims.
    pub dims: Vec<i64>,
    /// The number of trainable variables before it in its framework's order, if the file has that.
    pub place: Option<usize>,
}

/// The meaning of a slot's numbers in another framework.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// The same as ours.
    #[default]
    Same,
    /// Steps, such as Keras' momentum: minus the learning rate times ours.
    Step,
}
