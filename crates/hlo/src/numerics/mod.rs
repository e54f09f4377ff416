//! Properties of floating-point formats: bits, rounding, ulps, and updates that vanish.
//!
//! The formats as data ([`formats`]), exact decimals ([`decimal`]), the conversions that the rest of the crate uses
//! ([`bf16`]), the lost-update experiment ([`mod@accumulate`]), the error measures of an audit ([`compare`]; `audit`
//! runs the programs), and statistics of few pairs of numbers ([`paired`]). It does no IO and prints nothing; it
//! depends on the rest of the crate only for [`crate::DType`].

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
