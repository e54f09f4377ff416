//! `expression`: arithmetic on named layers.

use super::expression::{Formula, OF_NUMBERS, Operator, is_of_name, unknown, wrong_count};
use super::layer_options::{Arity, LayerOptions};
use crate::document::{self, Node, ReadError};
use crate::graph::{Scope, Tensor};
use crate::nn::{self, Activation};
use bf16scope_hlo::ops::{BinaryOp, Comparison, RuleError, UnaryOp};
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

/// Options of `expression`: a formula of layers and inputs by name, such as `a * sigmoid(b)`. `x` is the previous
/// layer, unless one has that name. Operands broadcast as in [`nn::merge`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expression {
    /// The formula: `+ - * / **`, comparisons (1 if true, else 0), numbers and functions.
    #[serde(deserialize_with = "formula")]
    pub expression: String,
}

/// Functions of one tensor in addition to activations.
const FUNCTIONS: &[(&str, UnaryOp)] = &[
    ("abs", UnaryOp::Abs),
    ("ceil", UnaryOp::Ceil),
    ("cos", UnaryOp::Cos),
    ("erf", UnaryOp::Erf),
    ("exp", UnaryOp::Exp),
    ("floor", UnaryOp::Floor),
    ("log", UnaryOp::Log),
    ("log1p", UnaryOp::Log1p),
    ("round", UnaryOp::RoundNearestEven),
    ("rsqrt", UnaryOp::Rsqrt),
    ("sign", UnaryOp::Sign),
    ("sin", UnaryOp::Sin),
    ("sqrt", UnaryOp::Sqrt),
];

fn activation(name: &str) -> Option<Activation> {
    Activation::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
}

fn formula<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Node::read(deserializer, |node| {
        let Some(text) = node.text() else { return Err(node.wrong("a formula, such as `a * sigmoid(b)`")) };
        let wrong = |message: String| ReadError::new(message).or_at(node.mark);
        let formula = Formula::parse(text).map_err(|message| match with_brackets(text) {
            Some(help) => wrong(message).with_help(help),
            None => wrong(message),
        })?;
        checked(&formula).map_err(wrong)?;
        if formula.names().is_empty() {
            let help = "a formula reads layers or inputs by their names";
            return Err(wrong(format!("`{text}` names no layer")).with_help(help));
        }
        Ok(text.to_string())
    })
}

/// The layers that compute what a formula has in brackets, which are not of the grammar: an index, or a list of numbers.
fn with_brackets(text: &str) -> Option<&'static str> {
    let (before, _) = text.split_once('[')?;
    Some(match before.ends_with(is_of_name) {
        true => "write a layer `{slice: [0, 1], axis: -1, inputs: a, name: b}`, and `b` here",
        false => {
            "a formula has one number in a place: write a layer for each, such as `{expression: a > 0.1, name: b}`, and \
             `{concat: [b, c]}`; of one column, after `{slice: [0, 1], axis: -1}`"
        }
    })
}

/// The number of arguments of a function, if there is one of the name.
fn n_arguments(name: &str) -> Option<usize> {
    match name {
        "maximum" | "minimum" | "max" | "min" | "pow" => Some(2),
        "square" | "stop_gradient" => Some(1),
        "where" | "clip" => Some(3),
        name => (activation(name).is_some() || FUNCTIONS.iter().any(|(other, _)| *other == name)).then_some(1),
    }
}

/// The first function in a node's formula that there is not.
pub(super) fn unknown_function(node: &Node) -> Option<String> {
    fn first(formula: &Formula) -> Option<String> {
        match formula {
            Formula::Number(_) | Formula::Name(_) => None,
            Formula::Unary(_, x) => first(x),
            Formula::Binary(_, x, y) => first(x).or_else(|| first(y)),
            Formula::Call(name, _) if n_arguments(name).is_none() => Some(name.clone()),
            Formula::Call(_, arguments) => arguments.iter().find_map(first),
        }
    }
    first(&Formula::parse(node.text()?).ok()?)
}

/// Checks that all functions are known and have the right number of arguments.
fn checked(formula: &Formula) -> Result<(), String> {
    match formula {
        Formula::Number(_) | Formula::Name(_) => Ok(()),
        Formula::Unary(_, x) => checked(x),
        Formula::Binary(_, x, y) => checked(x).and_then(|()| checked(y)),
        Formula::Call(name, arguments) => {
            let n = match n_arguments(name) {
                Some(n) => n,
                None => {
                    let function = name.strip_prefix("reduce_").unwrap_or(name);
                    if document::kind::names_of::<nn::Reduction>().contains(&function) {
                        let layer = format!("{{reduce: {function}, inputs: a, name: b}}");
                        return Err(format!("there is no function `{name}`: write a layer `{layer}`, and `b` here"));
                    }
                    let known = [
                        "maximum",
                        "minimum",
                        "square",
                        "pow",
                        "clip",
                        "where",
                        "sigmoid",
                        "tanh",
                        "relu",
                        "softmax",
                        "stop_gradient",
                    ];
                    let names: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).chain(known).collect();
                    return Err(unknown(name, &names));
                }
            };
            if arguments.len() != n {
                return Err(format!("{}, expected {n}", wrong_count(name, arguments.len())));
            }
            let number = |x: &Formula| x.number(&|_| Err(String::new())).ok();
            if let ("clip", [Some(least), Some(most)]) =
                (name.as_str(), [1, 2].map(|at| arguments.get(at).and_then(number)))
                && least > most
            {
                return Err(format!(
                    "`clip` between {least} and {most}, expected the lower bound before the upper one"
                ));
            }
            arguments.iter().try_for_each(checked)
        }
    }
}

/// The names in a node's formula, if it is one.
pub(super) fn names_of(node: &Node) -> Option<Vec<String>> {
    Formula::parse(node.text()?).ok().map(|formula| formula.names())
}

impl Expression {
    fn formula(&self) -> Formula {
        // Checked when it was read; for an invalid formula of a program, `build` reports it.
        Formula::parse(&self.expression).unwrap_or(Formula::Number(f64::NAN))
    }

    /// The layers and inputs in the formula.
    pub(super) fn names(&self) -> Vec<String> {
        self.formula().names()
    }
}

/// The error, and its remedy, where a formula's `x` may be the layer before it or another one of that name.
pub(super) fn two_called_x(before: &str) -> (String, String) {
    let message =
        format!("`x` in a formula is the layer before it, here `{before}`, and another input or layer is called `x`");
    (message, format!("give that one another name, and write `{before}` or `x` for the layer before"))
}

/// A number, or a tensor.
#[derive(Clone)]
enum Value {
    Number(f64),
    Tensor(Tensor),
}

impl LayerOptions for Expression {
    const ARITY: Arity = Arity::Named;

    fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
        s.layer(name, |s| {
            if let Some(poison) = inputs.iter().find(|input| input.is_poison()) {
                return (*poison).clone();
            }
            let names = self.names();
            let known =
                |name: &str| names.iter().position(|other| other == name).and_then(|at| inputs.get(at).copied());
            let formula = Formula::parse(&self.expression).and_then(|it| checked(&it).map(|()| it));
            match formula.map_err(wrong).and_then(|formula| evaluated(&formula, &known)) {
                Ok(Value::Tensor(tensor)) => tensor,
                Ok(Value::Number(_)) => {
                    let error = RuleError::new("expression/names", "the formula reads no layer");
                    s.graph().fail("expression", inputs, error)
                }
                Err(error) => s.graph().fail("expression", inputs, error),
            }
        })
    }
}

fn wrong(message: impl Into<String>) -> RuleError {
    RuleError::new("expression/formula", message)
}

fn evaluated<'a>(formula: &Formula, known: &dyn Fn(&str) -> Option<&'a Tensor>) -> Result<Value, RuleError> {
    Ok(match formula {
        Formula::Number(number) => Value::Number(*number),
        Formula::Name(name) => match known(name) {
            Some(input) => Value::Tensor(input.clone()),
            // `wiring` has counted the inputs.
            None => Value::Number(f64::NAN),
        },
        Formula::Unary(operator, x) => match (operator, evaluated(x, known)?) {
            (Operator::Not, x) => binary(Operator::Equal, x, Value::Number(0.0))?,
            (_, Value::Number(number)) => Value::Number(-number),
            (_, Value::Tensor(x)) => Value::Tensor(x.negate()),
        },
        Formula::Binary(operator, x, y) => binary(*operator, evaluated(x, known)?, evaluated(y, known)?)?,
        Formula::Call(name, arguments) => {
            let arguments: Vec<Value> = arguments.iter().map(|x| evaluated(x, known)).collect::<Result<_, _>>()?;
            called(name, arguments)?
        }
    })
}

fn called(name: &str, arguments: Vec<Value>) -> Result<Value, RuleError> {
    let number = |value: &Value| if let Value::Number(number) = value { Some(*number) } else { None };
    let short = name.strip_suffix("imum").unwrap_or(name);
    if let Some(numbers) = arguments.iter().map(number).collect::<Option<Vec<f64>>>()
        && OF_NUMBERS.contains(&short)
    {
        let call = Formula::Call(short.to_string(), numbers.into_iter().map(Formula::Number).collect());
        return call.number(&|_| Ok(f64::NAN)).map(Value::Number).map_err(wrong);
    }
    let tensor = |value: &Value| match value {
        Value::Tensor(tensor) => Ok(tensor.clone()),
        Value::Number(_) => Err(wrong(format!("`{name}` reads a number, expected a layer"))),
    };
    if let ("clip", [_, _, _]) | ("pow", [_, _]) = (name, &arguments[..]) {
        let mut arguments = arguments.into_iter();
        let (Some(x), Some(y)) = (arguments.next(), arguments.next()) else { unreachable!("two or three are counted") };
        return match arguments.next() {
            Some(most) => called("minimum", vec![called("maximum", vec![x, y])?, most]),
            None => binary(Operator::Power, x, y),
        };
    }
    if let "maximum" | "minimum" | "max" | "min" = name {
        let op = if name.starts_with("max") { BinaryOp::Maximum } else { BinaryOp::Minimum };
        return match &arguments[..] {
            [Value::Number(number), Value::Tensor(x)] | [Value::Tensor(x), Value::Number(number)] => {
                Ok(Value::Tensor(x.binary_scalar(op, *number)))
            }
            [x, y] => together(&tensor(x)?, &tensor(y)?, |x, y| x.binary(op, y)),
            _ => Err(wrong(wrong_count(name, arguments.len()))),
        };
    }
    if name == "where" {
        let [condition, x, y] = &arguments[..] else { return Err(wrong(wrong_count(name, arguments.len()))) };
        // A product with 0 and 1 would propagate NaN and infinity.
        let condition = tensor(condition)?;
        let like = [x, y].into_iter().find_map(|value| tensor(value).ok()).unwrap_or_else(|| condition.clone());
        let full = |value: &Value| match value {
            Value::Tensor(tensor) => tensor.clone(),
            Value::Number(number) => like.graph().full(like.dtype(), &like.dims(), *number),
        };
        let (x, y) = (full(x), full(y));
        let is = condition.cast(like.dtype());
        let all = nn::aligned(&[&is, &x, &y])?;
        let dims: Vec<i64> =
            (0..all[0].rank()).map(|axis| all.iter().map(|it| it.dims()[axis]).max().unwrap_or(1)).collect();
        let [is, x, y] = [0, 1, 2].map(|at| all[at].broadcast_to(&dims));
        let zeros = like.graph().full(like.dtype(), &dims, 0.0);
        return Ok(Value::Tensor(is.not_equal(&zeros).select(&x, &y)));
    }
    let x = tensor(&arguments[0])?;
    Ok(Value::Tensor(match (name, activation(name)) {
        ("square", _) => &x * &x,
        ("stop_gradient", _) => x.stop_gradient(),
        (_, Some(activation)) => activation.apply(&x),
        _ => {
            let op = FUNCTIONS.iter().find(|(other, _)| *other == name).map(|(_, op)| *op);
            x.unary(op.ok_or_else(|| wrong(unknown(name, &[])))?)
        }
    }))
}

/// `x // y` and `x % y`, as in Python: a remainder has the sign of the divisor.
fn floored(operator: Operator, x: Value, y: Value) -> Result<Value, RuleError> {
    let rest = match (&x, &y) {
        // HLO's remainder has the sign of the dividend.
        (Value::Tensor(x), Value::Number(n)) if x.dtype().is_integer() && *n >= 1.0 => {
            let rest = x.binary_scalar(BinaryOp::Remainder, *n).binary_scalar(BinaryOp::Add, *n);
            Value::Tensor(rest.binary_scalar(BinaryOp::Remainder, *n))
        }
        (Value::Tensor(x), _) if x.dtype().is_integer() => {
            let message = format!("`{operator}` of {}, expected a divisor that is a number of at least 1", x.shape());
            return Err(wrong(message).with_help("write `{cast: compute}` before it"));
        }
        _ => {
            let quotient = called("floor", vec![binary(Operator::Divide, x.clone(), y.clone())?])?;
            return match operator {
                Operator::Remainder => binary(Operator::Subtract, x, binary(Operator::Multiply, quotient, y)?),
                _ => Ok(quotient),
            };
        }
    };
    match operator {
        Operator::Remainder => Ok(rest),
        _ => binary(Operator::Divide, binary(Operator::Subtract, x, rest)?, y),
    }
}

fn together(x: &Tensor, y: &Tensor, combine: impl Fn(&Tensor, &Tensor) -> Tensor) -> Result<Value, RuleError> {
    let both = nn::aligned(&[x, y])?;
    Ok(Value::Tensor(combine(&both[0], &both[1])))
}

fn binary(operator: Operator, x: Value, y: Value) -> Result<Value, RuleError> {
    let arithmetic = |op: BinaryOp| {
        Ok(match (&x, &y) {
            (Value::Tensor(x), Value::Tensor(y)) => return together(x, y, |x, y| x.binary(op, y)),
            (Value::Tensor(x), Value::Number(y)) => Value::Tensor(x.binary_scalar(op, *y)),
            (Value::Number(x), Value::Tensor(y)) => {
                Value::Tensor(y.graph().full(y.dtype(), &y.dims(), *x).binary(op, y))
            }
            (Value::Number(_), Value::Number(_)) => {
                let number = |value: &Value| if let Value::Number(number) = value { *number } else { f64::NAN };
                let both = Formula::Binary(
                    operator,
                    Box::new(Formula::Number(number(&x))),
                    Box::new(Formula::Number(number(&y))),
                );
                // Two numbers have no names.
                Value::Number(both.number(&|_| Ok(f64::NAN)).map_err(wrong)?)
            }
        })
    };
    let compared = |direction: Comparison| {
        let truth = |x: &Tensor, y: &Tensor| {
            let is = x.compare(direction, y);
            is.cast(x.dtype())
        };
        match (&x, &y) {
            (Value::Tensor(x), Value::Tensor(y)) => together(x, y, truth),
            (Value::Tensor(x), Value::Number(y)) => {
                Ok(Value::Tensor(truth(x, &x.graph().full(x.dtype(), &x.dims(), *y))))
            }
            (Value::Number(x), Value::Tensor(y)) => {
                Ok(Value::Tensor(truth(&y.graph().full(y.dtype(), &y.dims(), *x), y)))
            }
            (Value::Number(_), Value::Number(_)) => arithmetic(BinaryOp::Add),
        }
    };
    match operator {
        Operator::Add => arithmetic(BinaryOp::Add),
        Operator::Subtract => arithmetic(BinaryOp::Subtract),
        Operator::Multiply => arithmetic(BinaryOp::Multiply),
        Operator::Divide => arithmetic(BinaryOp::Divide),
        Operator::Power => match &y {
            // A product is exact where a power is not, and its gradient at 0 is 0.
            Value::Number(2.0) if matches!(x, Value::Tensor(_)) => called("square", vec![x]),
            _ => arithmetic(BinaryOp::Power),
        },
        Operator::Equal => compared(Comparison::Eq),
        Operator::NotEqual => compared(Comparison::Ne),
        Operator::AtMost => compared(Comparison::Le),
        Operator::AtLeast => compared(Comparison::Ge),
        Operator::Less => compared(Comparison::Lt),
        Operator::Greater => compared(Comparison::Gt),
        // Truth values are 0 and 1.
        Operator::And => arithmetic(BinaryOp::Minimum),
        Operator::Or => arithmetic(BinaryOp::Maximum),
        Operator::FloorDivide | Operator::Remainder => floored(operator, x, y),
        Operator::Negate | Operator::Not => unreachable!("they have one operand"),
    }
}
