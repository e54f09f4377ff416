//! An evaluation that builds the network in another dtype than training does: outside of the scope, or of inputs without a cast.

use std::ops::Range;

use super::{Finding, Line, Script, Token, called, calls, has, has_name, has_text, opens_scope, says_bf16, slip};

pub(super) fn evaluation_without_scope(script: &Script) -> Vec<Finding> {
    let lines = script.lines();
    let scopes: Vec<usize> = (0..lines.len()).filter(|at| opens_scope(&lines[*at])).collect();
    let why = "an evaluation then computes in float32, and its network is another one";
    let chosen = lines.iter().filter(|line| (script.is_tpu || !scopes.is_empty()) && chooses_for_training_alone(line));
    let mend = "choose the dtype by a flag that training and evaluation share";
    let mut hits: Vec<Finding> =
        chosen.map(|line| slip(line.number, "bfloat16 for training alone", why, mend)).collect();
    if scopes.is_empty() {
        return hits;
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
            Some("if" | "elif") => {
                names_mode(&line.tokens, &["EVAL", "PREDICT", "eval", "predict", "infer"], "==")
                    || tests_training(condition(line)) == Some(false)
            }
            Some("else") => {
                let opened = lines[..*at].iter().rev().find(|before| before.indent <= line.indent);
                opened.is_some_and(|before| {
                    before.indent == line.indent
                        && before.tokens.first().and_then(Token::name) == Some("if")
                        && tests_training(condition(before)) == Some(true)
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

/// The condition of an `if` or `elif`.
fn condition(line: &Line) -> &[Token] {
    let end = line.tokens.iter().rposition(|token| token.is(":")).unwrap_or(line.tokens.len());
    line.tokens.get(1..end).unwrap_or_default()
}

/// Whether a condition holds in training alone, or (false) outside of training alone; `None` for another one.
fn tests_training(condition: &[Token]) -> Option<bool> {
    if condition.is_empty() || has_name(condition, "or") || has_name(condition, "if") {
        return None;
    }
    let part = |part: &[Token]| {
        let (is_not, tested) = match part {
            [Token::Name(word), tested @ ..] if word == "not" => (true, tested),
            tested => (false, tested),
        };
        let is_path = tested.iter().all(|token| token.name().is_some() || token.is("."));
        let word = tested.last().and_then(Token::name).filter(|_| is_path);
        let is_flag = matches!(word, Some("training" | "is_training" | "is_train"));
        let is_training = match () {
            () if is_flag || names_mode(tested, &["TRAIN", "train"], "==") => Some(true),
            () if names_mode(tested, &["TRAIN", "train"], "!=") => Some(false),
            () => None,
        };
        is_training.map(|holds| holds != is_not)
    };
    let parts: Vec<Option<bool>> = condition.split(|token| token.name() == Some("and")).map(part).collect();
    match parts[..] {
        [one] => one,
        _ => parts.contains(&Some(true)).then_some(true),
    }
}

/// Whether a condition is that `mode` is, or is not, one of these.
fn names_mode(condition: &[Token], modes: &[&str], comparison: &str) -> bool {
    let is_named = modes.iter().any(|mode| match mode.chars().all(char::is_uppercase) {
        true => has_name(condition, mode),
        false => condition.iter().any(|token| matches!(token, Token::Text(text) if text == mode)),
    });
    let n_comparisons = condition.iter().filter(|token| token.is("==") || token.is("!=")).count();
    is_named && n_comparisons == 1 && condition.iter().any(|token| token.is(comparison)) && !has_name(condition, "or")
}

/// Whether a line chooses bf16 for training alone: `bfloat16 if is_training else float32`, `use_bf16 = … and is_training`.
fn chooses_for_training_alone(line: &Line) -> bool {
    let at = |word: &str| line.tokens.iter().position(|token| token.name() == Some(word)).filter(|at| *at > 0);
    if let (Some(choice), Some(other)) = (at("if"), at("else")) {
        if choice > other {
            return false;
        }
        let (before, behind) = (&line.tokens[..choice], &line.tokens[other + 1..]);
        return match tests_training(&line.tokens[choice + 1..other]) {
            Some(true) => says(before, "bfloat16") && says(behind, "float32"),
            Some(false) => says(before, "float32") && says(behind, "bfloat16"),
            None => false,
        };
    }
    match &line.tokens[..] {
        [Token::Name(name), equals, value @ ..] if equals.is("=") => {
            (name.contains("bf16") || name.contains("bfloat16")) && tests_training(value) == Some(true)
        }
        _ => false,
    }
}

/// Whether tokens have a name or text.
fn says(tokens: &[Token], word: &str) -> bool {
    tokens.iter().any(|token| matches!(token, Token::Name(text) | Token::Text(text) if text == word))
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
        line.tokens.first().and_then(Token::name) == Some("if") && tests_training(condition(line)) == Some(true)
    });
    // An input_fn stands apart from the network's scope, which may cast what it gives.
    let has_scope = lines[first..end].iter().any(opens_scope)
        || (lines.iter().any(opens_scope)
            && lines.iter().filter(|line| calls(line, "cast") && says_bf16(line)).count() == 1);
    let others = (first..end).filter(|other| *other != at && casts(&lines[*other]).as_ref() == Some(&name));
    is_for_training
        && has_scope
        && others.count() == 0
        && !lines[first..end].iter().any(|line| has_text(line, "float32"))
}
