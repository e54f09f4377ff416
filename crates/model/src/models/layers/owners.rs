//! Layers that use other layers' variables: resolves their names, and checks them.

use super::wiring::{Wiring, at, key};
use super::{Config, Layer, LayerKind};
use crate::document::NodeError;

impl Wiring {
    /// The layer whose variables layer `number` uses, if it shares any.
    ///
    /// # Errors
    /// A name that is not a layer above it, or a layer of another kind or with other options.
    pub(super) fn owner_of(&self, config: &Config, number: usize) -> Result<Option<usize>, NodeError> {
        let layer = &config.layers[number];
        let Some(name) = &layer.share else { return Ok(None) };
        let wrong = |message: String| NodeError::new([at("layers", number), vec![key("share")]].concat(), message);
        let Some(other) = self.names[..number].iter().position(|other| other == name) else {
            let error = wrong(format!("layer `{}` shares `{name}`, which is no layer above it", self.names[number]));
            return Err(error.with_help(self.known(config, name)));
        };
        let owner = &config.layers[other];
        let options = |layer: &Layer| (layer.dtype, layer.tied_to.clone(), layer.spectral_norm, layer.trainable);
        if owner.kind != layer.kind || options(owner) != options(layer) {
            let message = format!(
                "layer `{}` shares `{name}`, which is of another kind or has other options",
                self.names[number]
            );
            let help = format!("write `{{share: {name}}}` and nothing of the kind: it is the same layer");
            return Err(wrong(message).with_help(help));
        }
        // The first of a chain owns the variables.
        Ok(Some(self.owners[other].unwrap_or(other)))
    }

    /// The layer whose table or kernel, transposed, is the kernel of a dense layer.
    ///
    /// # Errors
    /// A name that is not a layer above it, or a layer with neither.
    pub(super) fn tied(&self, config: &Config, number: usize) -> Result<Option<usize>, NodeError> {
        let Some(name) = &config.layers[number].tied_to else { return Ok(None) };
        let wrong = |message: String| NodeError::new([at("layers", number), vec![key("tied_to")]].concat(), message);
        let Some(other) = self.names[..number].iter().position(|other| other == name) else {
            let error =
                wrong(format!("layer `{}` is tied to `{name}`, which is no layer above it", self.names[number]));
            return Err(error.with_help(self.known(config, name)));
        };
        match (&config.layers[other].kind, &config.layers[other].tied_to) {
            (LayerKind::Embedding(_) | LayerKind::Dense(_), None) if config.layers[other].spectral_norm.is_none() => {
                Ok(Some(self.owners[other].unwrap_or(other)))
            }
            (kind, _) => {
                let message =
                    format!("layer `{name}` ({}) has no table and no kernel of its own to be tied to", kind.name());
                Err(wrong(message).with_help(
                    "name an `embedding`, or a `dense` layer that is neither tied itself nor has a `spectral_norm`",
                ))
            }
        }
    }
}
