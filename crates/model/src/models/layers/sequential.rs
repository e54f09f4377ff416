//! A sequence of layers, built in Rust: the form of the presets `mlp` and `cnn`.

use super::kinds::LayerKind;
use crate::graph::{Scope, Tensor};
use crate::nn::Dense;

/// A dense layer with this many units.
pub(in crate::models) fn dense(units: i64) -> LayerKind {
    LayerKind::Dense(Dense { units, ..Dense::default() })
}

/// Layers under their scoped names, each reading the previous one. Several may have one name: it is then only a name
/// level, as for functions without variables.
#[derive(Clone, Debug, Default)]
pub(in crate::models) struct Sequential(Vec<(String, LayerKind)>);

impl Sequential {
    /// Adds a layer at the end.
    pub fn push(&mut self, name: impl Into<String>, kind: LayerKind) {
        self.0.push((name.into(), kind));
    }

    /// Builds them on `x`; without layers, the result is `x`.
    pub fn build(&self, s: &Scope, x: &Tensor) -> Tensor {
        self.0.iter().fold(x.clone(), |x, (name, kind)| kind.build(s, name, &[&x]))
    }
}
