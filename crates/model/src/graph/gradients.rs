//! Reverse mode on tensors: [`gradients`].

use super::{Graph, Tensor};
use bf16scope_passes::{PassError, grad};
use std::borrow::Borrow;

/// The gradients of a loss with respect to each of `variables`, in their order, as TensorFlow's `tf.gradients` gives them:
/// appends them to the graph of the loss. Each has the dtype and dims of its variable; one on which the loss does not depend
/// gets zeros.
///
/// ```
/// use bf16scope_model::prelude::*;
///
/// let g = Graph::training("line");
/// let x = g.input("x", DType::F32, [8, 2]);
/// let y = g.scope().variable("w", DType::F32, [2, 1], Init::Zeros).value;
/// let loss = x.matmul(&y).sum(&[0, 1]);
/// let gradients = gradients(&loss, g.trainable_variables())?;
/// assert_eq!(gradients[0].dims(), [2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The variables may be any tensors that the loss depends on: `gradients(&loss, [&x])`. For a module that was not built
/// by a [`Graph`], see [`bf16scope_passes::grad`].
///
/// # Errors
/// As [`grad::gradients`]: a loss that is not a floating scalar, a variable that is not a floating array, a tensor of
/// another graph, an op in between without a gradient.
#[track_caller]
pub fn gradients(
    loss: &Tensor,
    variables: impl IntoIterator<Item = impl Borrow<Tensor>>,
) -> Result<Vec<Tensor>, PassError> {
    let graph = loss.graph();
    let variables: Vec<Tensor> = variables.into_iter().map(|variable| variable.borrow().clone()).collect();
    let gradients = grad::gradients(graph.emitter(), loss, &variables.iter().collect::<Vec<_>>())?;
    Ok(gradients.into_iter().map(|id| graph.tensor(id)).collect())
}

impl Graph {
    /// The trainable variables, in order, as inputs of [`gradients`]: each as it is stored, or as the f32 value that
    /// its readers share.
    pub fn trainable_variables(&self) -> Vec<Tensor> {
        let trainable = (0..).zip(self.variables()).filter(|(_, variable)| variable.trainable);
        let numbers: Vec<usize> = trainable.map(|(number, _)| number).collect();
        self.differentiables(&numbers).into_iter().map(|id| self.tensor(id)).collect()
    }

    /// The number of the variable that a tensor of [`Graph::trainable_variables`] represents.
    pub(crate) fn number_of(&self, tensor: &Tensor) -> Option<usize> {
        let (gathered, widened) = (self.inner.gathered.borrow(), self.inner.widened.borrow());
        let stands_for = |number: usize, stored| {
            [Some(stored), gathered.get(&number).copied(), widened.get(&number).copied()].contains(&Some(tensor.id))
        };
        let variables = self.inner.variables.borrow();
        variables.iter().enumerate().find(|(number, variable)| stands_for(*number, variable.instr)).map(|(n, _)| n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Init, Storage};
    use crate::nn::{self, BatchNorm, Dense};
    use crate::optim::Update;
    use bf16scope_hlo::DType;

    /// State is declared between trainable variables, so that positions differ from numbers.
    fn network(storage: Storage) -> (Graph, Tensor, Tensor) {
        let g = Graph::training("g").storing(storage);
        let x = g.input("x", DType::BF16, [8, 4]);
        let step = g.input("step", DType::S32, []);
        let loss = g.bf16_scope(|s| {
            let x = nn::batch_norm(s, &x, "bn", &BatchNorm::default());
            nn::dense(s, &x, "dense", &Dense { units: 2, ..Dense::default() }).cast(DType::F32).sum(&[0, 1])
        });
        (g, step, loss)
    }

    #[test]
    fn what_does_not_train_has_no_gradient() {
        for storage in [Storage::F32, Storage::Bf16Nearest] {
            let (g, step, loss) = network(storage);
            let variables = g.trainable_variables();
            let numbers: Vec<Option<usize>> = variables.iter().map(|variable| g.number_of(variable)).collect();
            assert_eq!(numbers, [0, 1, 4, 5].map(Some), "{storage:?}");
            let gradients = gradients(&loss, &variables).unwrap();
            Update::default().apply(&step, &variables, &gradients);
            g.finish(&[("loss", &loss)]).unwrap();
            let updated: Vec<bool> = g.variables().iter().map(|variable| variable.update.is_some()).collect();
            assert_eq!(updated[..6], [true; 6], "the running means by their layer");
        }
    }

    #[test]
    fn gradients_that_are_no_variables_are_refused() {
        let error = |variables: fn(&Graph, &Tensor) -> Vec<Tensor>, n: usize| {
            let (g, step, loss) = network(Storage::F32);
            let gradients = vec![g.full(DType::F32, &[4], 0.0); n];
            Update::default().apply(&step, &variables(&g, &loss), &gradients);
            g.finish(&[]).unwrap_err().to_string()
        };
        let first = error(|_, loss| vec![loss.clone()], 1);
        assert!(first.contains("is not a variable of the graph"), "{first}");
        assert!(first.ends_with("help: take them from `Graph::trainable_variables`"), "{first}");
        let first = error(|g, _| g.trainable_variables(), 1);
        assert!(first.contains("1 gradients for 4 variables, expected as many"), "{first}");
    }

    #[test]
    fn a_tensor_of_another_graph_is_refused() {
        let (_, _, loss) = network(Storage::F32);
        let other = Graph::new("other").scope().variable("w", DType::F32, [2], Init::Zeros).value;
        let error = gradients(&loss, [&other]).unwrap_err().to_string();
        assert!(error.contains("belongs to the graph `other`"), "{error}");
    }
}
