//! Layers that read several inputs: `add`, `subtract`, `multiply`, `average`, `maximum`, `minimum` and `concat`.

use super::layer_options::{Arity, LayerOptions};
use crate::graph::{Scope, Tensor};
use crate::nn;
use serde::{Deserialize, Serialize};

macro_rules! merges {
    ($($(#[$doc:meta])* $Layer:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $Layer {}

        impl LayerOptions for $Layer {
            const ARITY: Arity = Arity::Several;

            fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                s.layer(name, |_| nn::merge(inputs, nn::Merge::$Layer))
            }
        }
    )*};
}

merges! {
    /// `add` has no options; see [`nn::merge`].
    Add;
    /// `subtract` has no options; see [`nn::merge`].
    Subtract;
    /// `multiply` has no options; see [`nn::merge`].
    Multiply;
    /// `average` has no options; see [`nn::merge`].
    Average;
    /// `maximum` has no options; see [`nn::merge`].
    Maximum;
    /// `minimum` has no options; see [`nn::merge`].
    Minimum;
}

/// Options of `concat`; see [`nn::concat`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Concat {
    /// The axis, counting the batch. Default -1, the last.
    #[serde(default = "last")]
    pub axis: i64,
}

fn last() -> i64 {
    -1
}

impl LayerOptions for Concat {
    const ARITY: Arity = Arity::Several;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |_| nn::concat(inputs, self.axis))
    }
}
