//! Losses: probabilities given as logits, logits given as probabilities, and regularisers that are never added.

use super::{Finding, Line, Script, Token, argument, argument_in, arguments_in, called, calls, calls_of, has};
use super::{has_text, slip};
use crate::ported::SlipKind;

const NAMED: &str = "probabilities given as logits";
const FLAT: &str = "the loss takes a softmax or sigmoid itself: of probabilities it is flat";
const BEFORE: &str = "give what goes into the softmax or sigmoid";

/// Whether an expression of line `at` is the result of a softmax or sigmoid: by name, through casts, or as a layer's activation.
fn is_probability(script: &Script, value: &[Token], at: usize) -> bool {
    let (mut value, mut at) = (value, at);
    for _ in 0..8 {
        if let [Token::Name(name)] = value {
            match script.value_of(name, at) {
                Some((line, assigned)) => (at, value) = (line, assigned),
                None => return false,
            }
            continue;
        }
        let layer = without_input(value);
        match called(layer) {
            Some(word) if word.eq_ignore_ascii_case("softmax") || word == "sigmoid" => return true,
            Some(word @ ("cast" | "identity" | "squeeze" | "reshape")) => value = argument_in(value, word, "x", 0),
            Some(word) => {
                return ["activation", "activation_fn"]
                    .iter()
                    .any(|key| is_activation(argument_in(layer, word, key, usize::MAX), &["softmax", "sigmoid"]));
            }
            None => return false,
        }
    }
    false
}

/// The call that makes a layer, of an expression that makes one and calls it: `Dense(10)` of `Dense(10)(x)`.
fn without_input(value: &[Token]) -> &[Token] {
    let mut depth = 0;
    let closes = value.iter().enumerate().filter_map(|(at, token)| {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            _ => return None,
        }
        (depth == 0).then_some(at)
    });
    match closes.collect::<Vec<usize>>()[..] {
        [first, last] if last + 1 == value.len() && value[first + 1].is("(") => &value[..=first],
        _ => value,
    }
}

/// Whether a value names one of these functions: `"softmax"`, `tf.nn.softmax`.
fn is_activation(value: &[Token], functions: &[&str]) -> bool {
    match value.last() {
        Some(Token::Text(text) | Token::Name(text)) => functions.contains(&text.as_str()),
        _ => false,
    }
}

pub(super) fn probabilities_as_logits(script: &Script) -> Vec<Finding> {
    let losses = [
        "sigmoid_cross_entropy",
        "sigmoid_cross_entropy_with_logits",
        "weighted_cross_entropy_with_logits",
        "softmax_cross_entropy",
        "sparse_softmax_cross_entropy",
        "softmax_cross_entropy_with_logits",
        "softmax_cross_entropy_with_logits_v2",
        "sparse_softmax_cross_entropy_with_logits",
    ];
    // Keras' functions of labels and predictions, and its loss objects that take logits.
    let functions = ["binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy"];
    let objects: Vec<&str> = script.lines().iter().filter(|line| takes_logits(line)).filter_map(object_of).collect();
    let mut hits = Vec::new();
    for (at, line) in script.lines().iter().enumerate() {
        let logits = if let Some(loss) = losses.iter().find(|loss| calls(line, loss)) {
            // Optax' losses take logits first.
            argument(line, loss, "logits", usize::from(!calls_of(line, "optax", loss)))
        } else if let Some(loss) = functions.iter().find(|loss| calls(line, loss) && takes_logits(line)) {
            argument(line, loss, "y_pred", 1)
        } else if let Some(loss) = objects.iter().find(|loss| calls(line, loss)) {
            argument(line, loss, "y_pred", 1)
        } else {
            continue;
        };
        if is_probability(script, logits, at) {
            hits.push(slip(line.number, NAMED, FLAT, BEFORE));
        }
    }
    let lines = script.lines();
    let Some(at) = lines.iter().position(takes_logits).filter(|_| hits.is_empty()) else { return hits };
    let (what, functions): (_, &[&str]) = match has(&lines[at], "BinaryCrossentropy") {
        true => ("from_logits=True behind a sigmoid", &["sigmoid"]),
        false => ("from_logits=True behind a softmax", &["softmax"]),
    };
    if ends_in(&lines[..=at], functions).or_else(|| ends_in(lines, functions)) == Some(true) {
        let why = match functions {
            ["sigmoid"] => "the loss takes a sigmoid itself: of probabilities it is flat",
            _ => "the loss takes a softmax itself: of probabilities it is flat",
        };
        hits.push(slip(lines[at].number, what, why, "leave the activation of the last layer out"));
    }
    hits
}

fn takes_logits(line: &Line) -> bool {
    line.tokens
        .windows(3)
        .any(|three| three[0].name() == Some("from_logits") && three[1].is("=") && three[2].name() == Some("True"))
}

/// The name that a line gives a loss object: `loss_fn` of `self.loss_fn = CategoricalCrossentropy(…)`.
fn object_of(line: &Line) -> Option<&str> {
    let at = line.tokens.iter().position(|token| token.is("="))?;
    let is_object = called(&line.tokens[at + 1..]).is_some_and(|name| name.ends_with("Crossentropy"));
    line.tokens[..at].last()?.name().filter(|_| is_object)
}

/// Keras' `compile` with a loss of probabilities, behind a last layer that has no activation.
pub(super) fn logits_as_probabilities(script: &Script) -> Vec<Finding> {
    // An activation, wherever the script has it, may be the network's last.
    let gives_any = |line: &Line| {
        ["softmax", "sigmoid", "Softmax", "Activation"].iter().any(|word| has(line, word) || has_text(line, word))
            || has(line, "from_logits")
    };
    if script.lines().iter().any(gives_any) {
        return Vec::new();
    }
    let takes_probabilities = |line: &Line| {
        let loss = match argument(line, "compile", "loss", 1) {
            [Token::Text(text)] => text.as_str(),
            value => called(value).or(value.last().and_then(Token::name)).unwrap_or_default(),
        };
        let loss = loss.to_lowercase().replace('_', "");
        ["categoricalcrossentropy", "sparsecategoricalcrossentropy", "binarycrossentropy"].contains(&loss.as_str())
    };
    let is_plain = |lines: &[Line]| {
        let (at, line) = last_layer(lines)?;
        let layer = &line.tokens[at..];
        let is_dense = layer[0].name() == Some("Dense");
        Some(is_dense && argument_in(layer, "Dense", "activation", 1).is_empty())
    };
    let lines = script.lines();
    let hit = (0..lines.len()).find(|at| {
        calls(&lines[*at], "compile") && takes_probabilities(&lines[*at]) && is_plain(&lines[..*at]) == Some(true)
    });
    let what = "logits given as probabilities";
    let why =
        "without from_logits=True the loss takes the logarithm of the last layer's results, clipped to 1e-7 and 1";
    let mend = "…Crossentropy(from_logits=True), or a softmax or sigmoid as the last layer's activation";
    hit.map(|at| slip(lines[at].number, what, why, mend)).into_iter().collect()
}

/// The last layer of Keras in these lines that may be a network's last: its line, and its place there.
fn last_layer(lines: &[Line]) -> Option<(usize, &Line)> {
    const LAYERS: [&str; 5] = ["Dense", "Conv1D", "Conv2D", "Activation", "Softmax"];
    lines.iter().rev().find_map(|line| {
        let layer = |at: &usize| match &line.tokens[*at..] {
            [Token::Name(name), open, ..] => open.is("(") && LAYERS.contains(&name.as_str()),
            _ => false,
        };
        Some(((0..line.tokens.len()).rev().find(layer)?, line))
    })
}

/// Whether the last layer of Keras in these lines is one of these functions, or has one as its activation; `None` without a layer.
fn ends_in(lines: &[Line], functions: &[&str]) -> Option<bool> {
    let is_function = |token: &Token| match token {
        Token::Text(text) | Token::Name(text) => functions.contains(&text.as_str()),
        _ => false,
    };
    let (at, line) = last_layer(lines)?;
    let name = line.tokens[at].name()?;
    let is_layer = name == "Softmax" && functions.contains(&"softmax");
    Some(is_layer || arguments_in(&line.tokens[at..], name).iter().any(is_function))
}

pub(super) fn regulariser_without_use(script: &Script) -> Vec<Finding> {
    let takes = ["get_regularization_loss", "get_regularization_losses", "REGULARIZATION_LOSSES", "get_total_loss"];
    // A result that nothing reads is not added.
    let is_read = |at: usize, line: &Line| match &line.tokens[..] {
        [Token::Name(name), equals, value @ ..] if equals.is("=") && !value.iter().any(|token| token.is("+")) => {
            has(line, "get_total_loss")
                || script.lines().iter().enumerate().any(|(other, line)| other != at && has(line, name))
        }
        _ => true,
    };
    let is_taken = script.lines().iter().enumerate().any(|(at, line)| {
        takes.iter().any(|word| has(line, word)) && is_read(at, line)
            || calls(line, "fit")
            || line
                .tokens
                .windows(3)
                .any(|three| three[0].is(".") && three[1].name() == Some("losses") && !three[2].is("."))
    });
    // A file of layers has no loss; one that only passes a regulariser on, or none, asks for nothing.
    let is_asked = |three: &[Token]| {
        matches!(three[0].name(), Some("kernel_regularizer" | "weights_regularizer"))
            && three[1].is("=")
            && three[2].name() != Some("None")
            && three[2] != three[0]
    };
    // `None`, and a name that a function passes on, ask for nothing.
    let is_none = |value: &[Token]| match value {
        [] => true,
        [Token::Name(name)] => {
            matches!(name.as_str(), "None" | "regularizer" | "kernel_regularizer" | "weights_regularizer")
        }
        _ => false,
    };
    let asks = |line: &&Line| {
        let is_scope =
            calls(line, "variable_scope") && !is_none(argument(line, "variable_scope", "regularizer", usize::MAX));
        is_scope
            || calls(line, "l2_regularizer") && line.tokens.first().and_then(Token::name) != Some("return")
            || line.tokens.windows(3).any(is_asked)
    };
    let has_loss = ["loss", "total_loss", "minimize", "apply_gradients"].iter().any(|word| script.any(word));
    if is_taken || !has_loss {
        return Vec::new();
    }
    // A graph shows the same slip.
    let kind = SlipKind::UnaddedRegulariser;
    let hits = script.lines().iter().filter(asks).take(1);
    hits.map(|line| slip(line.number, kind.what(), kind.why(), kind.mend())).collect()
}
