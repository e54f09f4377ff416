//! An evaluation that builds the network in another dtype than training does: outside of the scope, or of inputs without a cast.

use std::ops::Range;

use super::{Finding, Line, Script, Token, called, calls, has, has_text, opens_scope, says_bf16, slip};

pub(super) fn evaluation_without_scope(script: &Script) -> Vec<Finding> {
    let lines = script.lines();
    let scopes: Vec<usize> = (0..lines.len()).filter(|at| opens_scope(&lines[*at])).collect();
    if scopes.is_empty() {
        return Vec::new();
    }
    let evaluations = evaluations(script, &scopes);
    let is_in = |ranges: &[Range<usize>], at: usize| ranges.iter().any(|range| range.contains(&at));
    let in_scopes: Vec<Range<usize>> = scopes.iter().map(|at| *at + 1..*at + 1 + script.block(*at).len()).collect();
    // The networks that training builds in a scope: functions of the script's own or of its modules, not TensorFlow's.
    let networks = in_scopes.iter().filter(|scope| !is_in(&evaluations, scope.start)).flat_map(|scope| scope.clone());
    let networks: Vec<&str> = networks.filter_map(|at| own_call(&lines[at])).collect();
    let opens_itself = |name: &str| {
        let defines = |at: &usize| match &lines[*at].tokens[..] {
            [def, defined, ..] => def.name() == Some("def") && defined.name() == Some(name),
            _ => false,
        };
        (0..lines.len()).filter(defines).any(|at| script.block(at).iter().any(opens_scope))
    };
    let mut hits = Vec::new();
    for range in &evaluations {
        if scopes.iter().any(|at| range.contains(at)) {
            continue;
        }
        let outside = range.clone().filter(|at| !is_in(&in_scopes, *at));
        let builds =
            |at: &usize| own_call(&lines[*at]).is_some_and(|name| networks.contains(&name) && !opens_itself(name));
        hits.extend(outside.filter(builds).map(|at| {
            slip(
                lines[at].number,
                "an evaluation outside of the bfloat16_scope",
                "it computes in float32 what training computes in bfloat16, so its numbers are of another network",
                "the same `with …bfloat16_scope():` around it, and logits cast to tf.float32 behind it",
            )
        }));
    }
    hits.extend((0..lines.len()).filter(|at| casts_for_training_alone(script, *at)).map(|at| {
        slip(
            lines[at].number,
            "inputs are cast for training alone",
            "an evaluation then reads float32, and its network is another one",
            "cast before the branch: x = tf.cast(x, tf.bfloat16)",
        )
    }));
    hits
}

/// The function that a line's value calls, by a plain name or as a module's, unless it is TensorFlow's.
fn own_call(line: &Line) -> Option<&str> {
    let value = match &line.tokens[..] {
        [Token::Name(word), value @ ..] if word == "return" => value,
        tokens => match tokens.iter().position(|token| token.is("=")) {
            Some(at) => &tokens[at + 1..],
            None => tokens,
        },
    };
    let is_own = !matches!(value.first().and_then(Token::name), None | Some("tf" | "np" | "self" | "keras" | "layers"));
    called(value).filter(|_| is_own)
}

/// The lines of evaluations: branches for `EVAL` or `PREDICT`, `else` behind `TRAIN`, and functions named after them.
fn evaluations(script: &Script, scopes: &[usize]) -> Vec<Range<usize>> {
    let lines = script.lines();
    // A network's own parts may have such names.
    let is_part = |name: &str| scopes.iter().any(|at| script.block(*at).iter().any(|line| has(line, name)));
    let is_evaluation = |at: &usize| {
        let line = &lines[*at];
        match line.tokens.first().and_then(Token::name) {
            Some("if" | "elif") => names_mode(line, &["EVAL", "PREDICT", "eval", "predict", "infer"], "=="),
            Some("else") => {
                let opened = lines[..*at].iter().rev().find(|before| before.indent <= line.indent);
                opened.is_some_and(|before| {
                    before.indent == line.indent
                        && before.tokens.first().and_then(Token::name) == Some("if")
                        && names_mode(before, &["TRAIN", "train"], "==")
                })
            }
            Some("def") => {
                let name = line.tokens.get(1).and_then(Token::name).unwrap_or_default();
                let is_named = matches!(name, "predict" | "predict_fn" | "predict_step")
                    || name.split('_').any(|part| matches!(part, "eval" | "evaluate" | "evaluation"));
                is_named && !is_part(name)
            }
            _ => false,
        }
    };
    let lines_of = |at: usize| at + 1..at + 1 + script.block(at).len();
    (0..lines.len()).filter(is_evaluation).map(lines_of).collect()
}

/// Whether a branch's condition is that `mode` is one of these.
fn names_mode(line: &Line, modes: &[&str], comparison: &str) -> bool {
    let is_named = modes.iter().any(|mode| match mode.chars().all(char::is_uppercase) {
        true => has(line, mode),
        false => line.tokens.iter().any(|token| matches!(token, Token::Text(text) if text == mode)),
    });
    let n_comparisons = line.tokens.iter().filter(|token| token.is("==") || token.is("!=")).count();
    is_named && n_comparisons == 1 && line.tokens.iter().any(|token| token.is(comparison)) && !has(line, "or")
}

/// Whether line `at` casts a name to bf16 in a branch for training, and nothing in its function casts it elsewhere.
fn casts_for_training_alone(script: &Script, at: usize) -> bool {
    let lines = script.lines();
    let casts = |line: &Line| match &line.tokens[..] {
        [Token::Name(name), equals, ..] if equals.is("=") && calls(line, "cast") && says_bf16(line) => {
            Some(name.clone())
        }
        _ => None,
    };
    let (Some(name), Some((first, end))) = (casts(&lines[at]), script.function_around(at)) else { return false };
    let before = lines[first..at].iter().rev().find(|line| line.indent < lines[at].indent);
    let is_for_training = before.is_some_and(|line| {
        line.tokens.first().and_then(Token::name) == Some("if") && names_mode(line, &["TRAIN", "train"], "==")
    });
    let has_scope = lines[first..end].iter().any(opens_scope);
    let others = (first..end).filter(|other| *other != at && casts(&lines[*other]).as_ref() == Some(&name));
    is_for_training
        && has_scope
        && others.count() == 0
        && !lines[first..end].iter().any(|line| has_text(line, "float32"))
}
