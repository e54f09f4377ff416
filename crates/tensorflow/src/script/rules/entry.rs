//! The name in a script that the tracer takes: a `model_fn`, a `tf.function`, or a Keras model and functions that make one.

use super::{Line, Script, Token, called, calls, has};

/// Whether a script is TensorFlow's, which the tracer runs.
pub(super) fn is_tensorflow(script: &Script) -> bool {
    ["tensorflow", "tf", "keras"].iter().any(|word| script.any(word))
}

/// The name that a graph is traced from.
pub(super) fn entry(script: &Script) -> Option<String> {
    let lines = script.lines();
    let functions = || (0..lines.len()).filter_map(|at| Some((at, defined(&lines[at])?)));
    let model_fn = functions().find(|(_, name)| name.contains("model_fn"));
    let is_function = |at: usize| {
        let before = lines[..at].iter().rev().take_while(|line| line.tokens.first().is_some_and(|token| token.is("@")));
        before.into_iter().any(|line| has(line, "tf") && has(line, "function"))
    };
    let function = || functions().find(|(at, _)| is_function(*at));
    let makes = |line: &Line| calls(line, "Sequential") || calls(line, "Model");
    let maker = || functions().find(|(at, _)| needs_nothing(&lines[*at]) && script.block(*at).iter().any(makes));
    let name = model_fn.or_else(function).or_else(maker).map(|(_, name)| name);
    let model = || {
        lines.iter().filter(|line| line.indent == 0).find_map(|line| match &line.tokens[..] {
            [Token::Name(name), equals, value @ ..] if equals.is("=") => {
                matches!(called(value), Some("Sequential" | "Model")).then_some(name.as_str())
            }
            _ => None,
        })
    };
    name.or_else(model).map(str::to_string)
}

/// The function that a line of the module itself defines.
fn defined(line: &Line) -> Option<&str> {
    match &line.tokens[..] {
        [def, Token::Name(name), ..] if line.indent == 0 && def.name() == Some("def") => Some(name),
        _ => None,
    }
}

/// Whether every parameter of a function has a default.
fn needs_nothing(line: &Line) -> bool {
    let mut depth = 0;
    let (mut n_parameters, mut n_defaults) = (0, 0);
    let inside = line.tokens.iter().skip(3);
    for (at, token) in inside.enumerate() {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")") if depth == 0 => break,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            Token::Sign("=") if depth == 0 => n_defaults += 1,
            Token::Name(_) if depth == 0 && (at == 0 || line.tokens[at + 2].is(",")) => n_parameters += 1,
            _ => {}
        }
    }
    n_parameters == n_defaults
}
