//! Loads weights into a model: maps a file's arrays to a network's variables, by rules that are data.
//!
//! [`Rules`] hold the names of one family (TensorFlow's TPU models, Keras, Hugging Face's GPT-2, …) or a user's own; a
//! [`Mapping`] gives the source of every variable before any values are read; [`values()`] reads them. Names decide: an
//! array is never taken because its shape fits. The caller opens the files ([`Arrays`]), and [`train`](crate) uses the
//! values.

mod backwards;
mod error;
mod further_names;
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
pub use further_names::FurtherName;
pub use layout::Layout;
pub use mapping::{Cast, Found, Mapped, Mapping};
pub use numbering::{Indexed, SlotOrder, SlotsBy};
pub use pattern::{Captures, Pattern, Standing, Template};
pub use report::MappingSummary;
pub use rules::{AxisPart, Beside, Rule, Rules, RulesError, SlotName, families};
pub use values::{Arrays, Value, values};
pub use variable::{Given, Role, Scale, Wanted};
