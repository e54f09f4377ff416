//! Ownership of tensors: tensors of two graphs cannot be mixed.
//!
//! An id is a number, and each graph counts from zero: an id of one graph would silently name another instruction in
//! the other. Every function that takes tensors checks [`Graph::owns`] first.

use super::{Graph, Tensor};
use bf16scope_hlo::ops::RuleError;
use bf16scope_hlo::{Emitter, InstrId, Metadata, POISON, Value};
use std::panic::Location;
use std::rc::Rc;

impl Graph {
    /// Whether a tensor belongs to this graph.
    pub(super) fn is_of(&self, tensor: &Tensor) -> bool {
        Rc::ptr_eq(&tensor.graph.inner, &self.inner)
    }

    /// Whether all `tensors` belong to this graph. If not, this graph and that of the first foreign tensor both record
    /// the error: either may be the one that is finished.
    #[track_caller]
    pub(crate) fn owns(&self, what: &str, tensors: &[&Tensor]) -> bool {
        match tensors.iter().find(|tensor| !self.is_of(tensor)) {
            None => true,
            Some(foreign) => {
                // A layer that receives a tensor of another graph is open in its own graph.
                let graphs = [self].into_iter().chain(tensors.iter().map(|tensor| &tensor.graph));
                let mut open = graphs.filter_map(|graph| Some((graph, graph.inner.layer_caller.get()?)));
                let (graph, caller) = open.next().unwrap_or((self, Location::caller()));
                let metadata = graph.metadata_at("", caller);
                keep_error(what, self.emitter(), metadata, tensors, foreign);
                false
            }
        }
    }
}

impl Value for Tensor {
    #[track_caller]
    fn id_in(&self, e: &Emitter) -> InstrId {
        if std::ptr::eq(self.graph.emitter(), e) {
            return self.id;
        }
        let metadata = self.graph.metadata_at("", Location::caller());
        keep_error("gradient", e, metadata, &[self], self);
        POISON
    }
}

/// Records in `e` and in the graph of `foreign` that `foreign` is not a value of the computation of `e`.
fn keep_error(what: &str, e: &Emitter, metadata: Metadata, tensors: &[&Tensor], foreign: &Tensor) {
    let theirs = foreign.graph.emitter();
    let name = |e: &Emitter| e.with_module(|module| module.name.clone());
    let operands: Vec<_> = tensors.iter().map(|tensor| tensor.graph.emitter().describe(tensor.id)).collect();
    let (here, there) = (name(e), name(theirs));
    let (foreign, _) = theirs.describe(foreign.id);
    let another = if here == there { "another graph of the name" } else { "the graph" };
    let message = format!("{foreign} belongs to {another} `{there}`, expected a tensor of `{here}`");
    let error = RuleError::new("graph/owner", message).with_help(
        "make it in the same graph; the body of a `scan` is a graph of its own: give the body an input for it, and `scan` \
         the tensor as an `Operand::Carried`",
    );
    for emitter in [e, theirs] {
        let outer = emitter.set_metadata(metadata.clone());
        emitter.fail_described(what, operands.clone(), error.clone());
        emitter.set_metadata(outer);
    }
}
