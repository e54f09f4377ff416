//! The layer `gradient`: what a layer changes by where another changes, as a tensor that further layers read.

use super::layer_options::{Arity, LayerOptions};
use crate::graph::{Scope, Tensor, gradients};
use bf16scope_hlo::ops::RuleError;
use serde::{Deserialize, Serialize};

/// `gradient` has no options: `{gradient: [y, x]}` is the gradient of the sum of the layer y with respect to the layer or
/// input x, of the dims of x. Where examples do not mix, each row is the gradient of that example's y: TensorFlow's
/// `tape.gradient(y, x)`, torch's `autograd.grad(y.sum(), x, create_graph=True)`. It is differentiated in training as any
/// layer is: a gradient penalty, a physical law.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gradient {}

impl LayerOptions for Gradient {
    const ARITY: Arity = Arity::Several;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |s| {
            let wrong = |message: String, help: &str| {
                let error = RuleError::new("gradient/inputs", message).with_help(help);
                s.graph().fail("gradient", inputs, error)
            };
            let [y, x] = inputs else {
                let message = format!("it reads {}, expected two: what changes, and by what", inputs.len());
                return wrong(message, "write `{gradient: [y, x]}`");
            };
            if let Some(poison) = inputs.iter().find(|tensor| tensor.is_poison()) {
                return (*poison).clone();
            }
            if let Some(whole) = inputs.iter().find(|tensor| !tensor.dtype().is_float()) {
                let message = format!("it reads {}, expected two of a floating dtype", whole.shape());
                return wrong(message, "whole numbers have no gradient: name an `embedding` of them, or floats");
            }
            if !depends_on(y, x) {
                let message = format!("{} does not depend on {}: the gradient would be zeros", y.shape(), x.shape());
                return wrong(message, "name what the first is computed of, in the network that computes it");
            }
            let axes: Vec<i64> = (0..y.rank() as i64).collect();
            match gradients(&y.sum(&axes), [*x]) {
                Ok(gradient) => gradient[0].clone(),
                Err(error) => wrong(error.to_string(), "compute what y is by layers that have gradients"),
            }
        })
    }
}

/// Whether `y` is computed of `x`.
fn depends_on(y: &Tensor, x: &Tensor) -> bool {
    y.graph().emitter().with_module(|module| {
        let instructions = &module.entry().instructions;
        let mut depends = vec![false; y.id.idx() + 1];
        for id in x.id.idx()..depends.len() {
            let operands = instructions.get(id).map(|instr| &instr.operands[..]).unwrap_or_default();
            depends[id] = id == x.id.idx() || operands.iter().any(|operand| depends[operand.idx()]);
        }
        depends[y.id.idx()]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use bf16scope_hlo::ops::CustomCall;
    use bf16scope_hlo::{DType, Op};

    #[test]
    fn an_op_without_a_gradient_is_named() {
        let g = Graph::training("g");
        let x = g.input("x", DType::F32, [2, 3]);
        let call = Op::CustomCall(Box::new(CustomCall { target: "f".into(), ..CustomCall::default() }));
        let y = x.emit("f", &[], |e| e.emit(call, &[x.id], Some(&e.shape(x.id))));
        let slope = Gradient {}.build(&g.scope(), "slope", &[&y, &x]);
        let error = g.finish(&[("slope", &slope)]).unwrap_err().0.error;
        assert!(
            error.message.contains("what the custom call \"f\" computes is known to its back end only"),
            "{error:?}"
        );
        assert_eq!(error.help.as_deref(), Some("compute what y is by layers that have gradients"));
    }
}
