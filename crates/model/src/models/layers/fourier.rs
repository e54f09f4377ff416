//! Fourier transforms as layers: `fft`, `ifft`, `rfft`, `irfft`.

use super::layer_options::{Arity, LayerOptions};
use super::reductions::axes;
use crate::graph::{Scope, Tensor};
use crate::nn::{self, Complex, Transform};
use serde::{Deserialize, Serialize};

/// The real number that stands for a complex one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComplexPart {
    /// The real part.
    #[default]
    Real,
    /// The imaginary part.
    #[serde(alias = "imaginary")]
    Imag,
    /// The absolute value, whose gradient at 0 is not finite.
    #[serde(alias = "magnitude")]
    Abs,
    /// The square of the absolute value.
    Power,
}

impl ComplexPart {
    #[track_caller]
    fn taken_from(self, x: &Complex) -> Tensor {
        let power = || x.imaginary.iter().fold(&x.real * &x.real, |sum, part| sum + part * part);
        match (self, &x.imaginary) {
            (ComplexPart::Real, _) => x.real.clone(),
            (ComplexPart::Imag, Some(imaginary)) => imaginary.clone(),
            (ComplexPart::Imag, None) => x.real.graph().full(x.real.dtype(), &x.real.dims(), 0.0),
            (ComplexPart::Abs, _) => power().sqrt(),
            (ComplexPart::Power, _) => power(),
        }
    }
}

fn last() -> Vec<i64> {
    vec![-1]
}

macro_rules! transforms {
    ($($(#[$doc:meta])* $Layer:ident, $ARITY:ident, |$options:ident, $x:ident| $of:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Layer {
            /// The part of each complex number that is the result. Default `real`.
            #[serde(default)]
            pub part: ComplexPart,
            /// The axes, counting the batch. Default -1, the last.
            #[serde(default = "last", deserialize_with = "axes")]
            pub axis: Vec<i64>,
        }

        impl LayerOptions for $Layer {
            const ARITY: Arity = Arity::$ARITY;

            fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                let ($options, $x) = (self, complex(inputs));
                s.layer(name, |_| self.part.taken_from(&$of).cast(inputs[0].dtype()))
            }
        }
    )*};
}

transforms! {
    /// Options of `fft`; see [`nn::fourier`]. It reads real numbers, or real and imaginary parts.
    Fft, OneOrTwo, |options, x| nn::fourier(&x, &options.axis, Transform::Forward, None);
    /// Options of `ifft`; see [`nn::fourier`]. It reads real numbers, or real and imaginary parts.
    Ifft, OneOrTwo, |options, x| nn::fourier(&x, &options.axis, Transform::Inverse, None);
    /// Options of `rfft`, the half of the frequencies that says all of real numbers; see [`nn::fourier`].
    Rfft, One, |options, x| {
        let n_bins = options.axis.last().and_then(|&axis| x.real.dims().get(x.real.axis(axis) as usize).copied());
        nn::fourier(&x, &options.axis, Transform::Forward, n_bins.map(|n| n / 2 + 1))
    };
}

/// Options of `irfft`; see [`nn::inverse_real_fourier`]. It reads real and imaginary parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Irfft {
    /// The length of the last of the axes in the result. Default the even one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<i64>,
    /// The axes, counting the batch. Default -1, the last.
    #[serde(default = "last", deserialize_with = "axes")]
    pub axis: Vec<i64>,
}

impl LayerOptions for Irfft {
    const ARITY: Arity = Arity::OneOrTwo;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        let x = complex(inputs);
        s.layer(name, |_| nn::inverse_real_fourier(&x, &self.axis, self.length).cast(inputs[0].dtype()))
    }
}

fn complex(inputs: &[&Tensor]) -> Complex {
    Complex { real: inputs[0].clone(), imaginary: inputs.get(1).map(|&part| part.clone()) }
}
