//! The variables of a layer: its own, those of a layer that it shares, or a table that it is tied to.

use super::build::{Build, Tensors};
use super::kinds::{LayerDType, LayerKind};
use super::wiring::at;
use crate::document::NodeError;
use crate::graph::{Scope, Tensor};
use crate::nn;
use bf16scope_hlo::DType;

impl Build<'_> {
    /// Runs `body` with the name of layer `number`; if it shares variables with others, in a shared part under the name
    /// of the layer that declares them.
    pub(super) fn under_its_name<R>(&self, number: usize, s: &Scope, body: impl FnOnce(&Scope, &str) -> R) -> R {
        let (names, owner) = (&self.wiring.names, self.wiring.owners[number]);
        let owner = owner.or(Some(number).filter(|&number| self.wiring.is_shared[number]));
        match owner {
            Some(owner) => s.shared(&names[owner], |s| body(s, "")),
            None => body(s, &names[number]),
        }
    }

    /// The table or kernel that layer `number` is tied to, in the dtype in which it is read there.
    pub(super) fn table(&self, number: usize, s: &Scope, tensors: &Tensors) -> Option<Tied> {
        let owner = self.wiring.tied[number]?;
        let layer = &self.config.layers[owner];
        let source = *self.wiring.reads[owner].first()?;
        let request = |s: &Scope| {
            let low = s.low_precision_dtype().unwrap_or(DType::F32);
            s.shared(&self.wiring.names[owner], |s| match &layer.kind {
                LayerKind::Embedding(table) => {
                    let dims = [table.input_dim, table.output_dim];
                    s.variable("embeddings", low, dims, table.embeddings_initializer)
                }
                LayerKind::Dense(dense) => {
                    let x = self.as_read(s, layer, source, tensors.get(source));
                    let inputs = x.dims().last().copied().unwrap_or(1);
                    s.variable("kernel", x.dtype(), [inputs, dense.units], dense.kernel_initializer)
                }
                _ => unreachable!("wiring ties to embeddings and dense layers alone"),
            })
        };
        let variable = match layer.dtype {
            Some(LayerDType::Float32) => s.in_f32(request),
            None => request(s),
        };
        Some(Tied { value: variable.value, full: variable.full })
    }

    /// A dense layer that uses another layer's table as its kernel.
    pub(super) fn tied(&self, number: usize, s: &Scope, x: &Tensor, table: Tied) -> Tensor {
        let LayerKind::Dense(config) = &self.config.layers[number].kind else {
            unreachable!("`tied_to` is read of dense layers alone")
        };
        let value = match table.value.dtype() == x.dtype() {
            true => table.value,
            false => table.full.cast(x.dtype()),
        };
        self.under_its_name(number, s, |s, name| nn::tied_dense(s, x, name, &value, config))
    }

    /// Constrains the variables of layer `number`: those of the graph from `first` on. A layer that is applied again has
    /// declared none, and shares constrained ones.
    pub(super) fn constrained(&self, number: usize, first: usize, s: &Scope) -> Result<(), NodeError> {
        let layer = &self.config.layers[number];
        if layer.constraints.is_empty() || self.wiring.owners[number].is_some() || s.graph().emitter().error().is_some()
        {
            return Ok(());
        }
        let variables = s.graph().variables_from(first);
        layer.constraints.apply(s.graph(), &variables).map_err(|(key, message)| {
            let name = &self.wiring.names[number];
            NodeError::new([at("layers", number), vec![key.into()]].concat(), format!("layer `{name}`: {message}"))
        })
    }

    /// The penalties of layer `number`'s regularizers; its variables are those of the graph from `first` on.
    pub(super) fn regularized(
        &self,
        number: usize,
        first: usize,
        s: &Scope,
        made: &Tensor,
    ) -> Result<Option<Tensor>, NodeError> {
        let layer = &self.config.layers[number];
        if layer.regularizers.is_empty() {
            return Ok(None);
        }
        let graph = s.graph();
        let infos = graph.variables_from(first).into_iter();
        let variables: Vec<_> =
            infos.map(|(number, info)| (info, graph.tensor(graph.differentiable(number)))).collect();
        let is_owner = self.wiring.owners[number].is_none();
        layer.regularizers.sum(made, &variables, is_owner).map_err(|(key, message)| {
            let name = &self.wiring.names[number];
            NodeError::new([at("layers", number), vec![key.into()]].concat(), format!("layer `{name}`: {message}"))
        })
    }
}

/// A table that a layer is tied to.
pub(super) struct Tied {
    /// As its owner reads it.
    value: Tensor,
    /// In its storage dtype.
    full: Tensor,
}
