//! Weights into a model: which array of a file is which variable of a network, by rules that are data.
//!
//! [`Rules`] are one family's names (TensorFlow's TPU models', Keras', Hugging Face's GPT-2, …) or a user's own; a [`Mapping`]
//! says of every variable what became of it, before anything is read; [`values()`] reads. Names decide: nothing is taken because
//! its shape fits. Files are opened by whoever has them ([`Arrays`]); what the values are for is [`train`](crate)'s.

mod backwards;
mod error;
mod layout;
mod mapping;
mod numbering;
mod pattern;
mod report;
mod rules;
mod values;
mod variable;

pub use backwards::{TheirArray, their_arrays};
pub use error::{Misfit, WeightNameError};
pub use layout::Layout;
pub use mapping::{Cast, Found, Mapped, Mapping};
pub use numbering::{Indexed, SlotOrder, SlotsBy};
pub use pattern::{Captures, Pattern, Standing, Template};
pub use report::MappingSummary;
pub use rules::{AxisPart, Beside, Rule, Rules, RulesError, SlotName, families};
pub use values::{Arrays, Value, values};
pub use variable::{Given, Role, Scale, Wanted};
