//! Layers one after another, put together in Rust: what the presets `mlp` and `cnn` are.

use super::kinds::LayerKind;
use crate::graph::{Scope, Tensor};
use crate::nn::Dense;

/// A dense layer of so many units.
pub(in crate::models) fn dense(units: i64) -> LayerKind {
    LayerKind::Dense(Dense { units, ..Dense::default() })
}

/// Layers, each of which reads the one before, under their scoped names. Several may have one name: it is then only the
/// level of what they emit, as of functions without variables.
#[derive(Clone, Debug, Default)]
pub(in crate::models) struct Sequential(Vec<(String, LayerKind)>);

impl Sequential {
    /// Adds a layer at the end.
    pub fn push(&mut self, name: impl Into<String>, kind: LayerKind) {
        self.0.push((name.into(), kind));
    }

    /// Builds them on `x`; the result of none is `x`.
    pub fn build(&self, s: &Scope, x: &Tensor) -> Tensor {
        self.0.iter().fold(x.clone(), |x, (name, kind)| kind.build(s, name, &[&x]))
    }
}
