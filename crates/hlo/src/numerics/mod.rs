//! What floating formats do to numbers: bits, rounding, ulps, and updates that vanish.
//!
//! Holds the formats as data ([`formats`]), exact decimals ([`decimal`]), the conversions everything else in the
//! crate uses ([`bf16`]), the lost-update experiment ([`mod@accumulate`]) and the measures by which arrays are compared
//! ([`compare`]; what runs the programs that make them is `audit`), and what few pairs of numbers tell ([`paired`]). Does no IO and prints nothing; knows of the
//! rest of the crate only [`crate::DType`].

pub mod accumulate;
pub mod bf16;
pub mod compare;
pub mod decimal;
pub mod formats;
pub mod paired;
pub mod power;

pub use accumulate::{Accumulation, accumulate};
pub use decimal::{Decimal, Number, ParseNumberError};
pub use formats::{Class, Format};
