//! The result of an op whose operands are single numbers, as schedules and updates of variables use them.

use super::symbols::constant;
use crate::node::{Edge, Node};

/// The result of a node, of numbers that `read` finds; `None` for every other op. `round` rounds results that are no whole numbers.
pub(super) fn result(
    node: &Node,
    output: usize,
    round: impl Fn(f64) -> f64,
    read: &mut dyn FnMut(Edge) -> Option<f64>,
) -> Option<f64> {
    let mut input = |number: usize| node.inputs.get(number).and_then(|edge| read(*edge));
    let truth = |is: bool| Some(f64::from(u8::from(is)));
    let is_whole = node.dtype("T").is_some_and(|dtype| dtype.is_integer());
    let rounded = |value: f64| if is_whole { value } else { round(value) };
    Some(match node.op.as_str() {
        "Const" => match constant(node)?.1[..] {
            [one] => one,
            _ => return None,
        },
        // Rows that are alike.
        "ResourceGather" | "Gather" | "GatherV2" => input(0)?,
        "Identity" | "ReadVariableOp" | "StopGradient" | "Reshape" | "Squeeze" | "ExpandDims" | "EnsureShape" => {
            input(0)?
        }
        "Cast" => match node.dtype("DstT")?.is_integer() {
            true => input(0)?.trunc(),
            false => input(0)?,
        },
        "Add" | "AddV2" => rounded(input(0)? + input(1)?),
        "Sub" => rounded(input(0)? - input(1)?),
        "Mul" => rounded(input(0)? * input(1)?),
        "RealDiv" | "Div" if !is_whole => rounded(input(0)? / input(1)?),
        "Div" | "FloorDiv" => (input(0)? / input(1)?).floor(),
        "FloorMod" => input(0)?.rem_euclid(input(1)?),
        "Pow" => rounded(input(0)?.powf(input(1)?)),
        "Square" => rounded(input(0)?.powi(2)),
        "Sqrt" => rounded(input(0)?.sqrt()),
        "Rsqrt" => rounded(1.0 / input(0)?.sqrt()),
        "Exp" => rounded(input(0)?.exp()),
        "Log" => rounded(input(0)?.ln()),
        "Log1p" => rounded(input(0)?.ln_1p()),
        "Expm1" => rounded(input(0)?.exp_m1()),
        "Softplus" => rounded(input(0).map(|x| x.max(0.0) + (-x.abs()).exp().ln_1p())?),
        "Sigmoid" => rounded(input(0).map(|x| 1.0 / (1.0 + (-x).exp()))?),
        "Tanh" => rounded(input(0)?.tanh()),
        "Relu" => input(0)?.max(0.0),
        "DivNoNan" => match (input(0)?, input(1)?) {
            (_, 0.0) => 0.0,
            (x, y) => rounded(x / y),
        },
        "ClipByValue" => input(0)?.max(input(1)?).min(input(2)?),
        "Cos" => rounded(input(0)?.cos()),
        "Neg" => -input(0)?,
        "Abs" => input(0)?.abs(),
        "Sign" => match input(0)? {
            0.0 => 0.0,
            value => value.signum(),
        },
        "SquaredDifference" => rounded((input(0)? - input(1)?).powi(2)),
        "ZerosLike" => 0.0,
        "OnesLike" => 1.0,
        "Reciprocal" | "Inv" => rounded(1.0 / input(0)?),
        "Floor" => input(0)?.floor(),
        "Ceil" => input(0)?.ceil(),
        "Minimum" => input(0)?.min(input(1)?),
        "Maximum" => input(0)?.max(input(1)?),
        "Less" => return truth(input(0)? < input(1)?),
        "LessEqual" => return truth(input(0)? <= input(1)?),
        "Greater" => return truth(input(0)? > input(1)?),
        "GreaterEqual" => return truth(input(0)? >= input(1)?),
        "Equal" => return truth(input(0)? == input(1)?),
        "LogicalAnd" => return truth(input(0)? != 0.0 && input(1)? != 0.0),
        "LogicalOr" => return truth(input(0)? != 0.0 || input(1)? != 0.0),
        "LogicalNot" => return truth(input(0)? == 0.0),
        "Select" | "SelectV2" | "Where" => match input(0)? {
            0.0 => input(2)?,
            _ => input(1)?,
        },
        // The output that is not taken has no value.
        "Switch" | "RefSwitch" => {
            let is_taken = (input(1)? != 0.0) == (output == 1);
            return if is_taken { input(0) } else { None };
        }
        "Merge" => return (0..node.inputs.len()).find_map(input),
        _ => return None,
    })
}

/// Whether an op's result is a number wherever its operands are.
pub(super) fn is_known(node: &Node) -> bool {
    result(node, 0, |value| value, &mut |_| Some(1.0)).is_some()
}
