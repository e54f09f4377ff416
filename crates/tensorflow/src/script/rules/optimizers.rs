//! Optimizers and rates: one that is not wrapped, one that sums gradients, a wrapped one or a rate that nothing reads.

use super::{Finding, Line, Script, Token, arguments_in, called, calls, calls_of, has, slip};
use crate::ported::SlipKind;

const NOT_WRAPPED: &str = "an optimizer that is not wrapped in CrossShardOptimizer";
const OWN_PART: &str = "each core then trains on its own part of the batch";

pub(super) fn optimizer_without_shards(script: &Script) -> Vec<Finding> {
    let is_estimator = script.any("TPUEstimatorSpec") || script.any("TPUEstimator");
    if !is_estimator {
        return Vec::new();
    }
    if script.any("CrossShardOptimizer") {
        return wrapped_without_use(script);
    }
    let is_optimizer = |line: &&Line| {
        line.tokens.windows(2).any(|pair| {
            pair[1].is("(") && pair[0].name().is_some_and(|name| name.ends_with("Optimizer") && name.len() > 9)
        }) && line.tokens.first().and_then(Token::name) != Some("class")
    };
    let mend = "optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)";
    script
        .lines()
        .iter()
        .filter(is_optimizer)
        .take(1)
        .map(|line| slip(line.number, NOT_WRAPPED, OWN_PART, mend))
        .collect()
}

/// A `CrossShardOptimizer` that nothing in its function reads, where the optimizer inside of it takes the steps.
fn wrapped_without_use(script: &Script) -> Vec<Finding> {
    let lines = script.lines();
    let is_unused = |at: &usize| {
        let line = &lines[*at];
        let Some((first, end)) = script.function_around(*at) else { return false };
        let (name, value) = match &line.tokens[..] {
            [Token::Name(name), equals, value @ ..] if equals.is("=") => (Some(name), value),
            value => (None, value),
        };
        let [Token::Name(inner)] = arguments_in(value, "CrossShardOptimizer") else { return false };
        let others = || (first..end).filter(|other| other != at).map(|other| &lines[other]);
        let steps = |line: &Line| {
            ["minimize", "apply_gradients", "compute_gradients"].iter().any(|step| calls_of(line, inner, step))
        };
        called(value) == Some("CrossShardOptimizer")
            && !name.is_some_and(|name| others().any(|other| has(other, name)))
            && others().any(steps)
    };
    let mend = "take the gradients and the update of the wrapped one: optimizer = …CrossShardOptimizer(optimizer)";
    (0..lines.len()).filter(is_unused).map(|at| slip(lines[at].number, NOT_WRAPPED, OWN_PART, mend)).collect()
}

/// A `CrossShardOptimizer` that gets the gradients of `tf.gradients`: its `compute_gradients` would divide the loss by the cores.
pub(super) fn gradients_summed(script: &Script) -> Vec<Finding> {
    let lines = script.lines();
    // A script that counts cores or talks across them may divide by itself.
    const DIVIDES: [&str; 6] =
        ["compute_gradients", "minimize", "num_shards", "num_cores", "num_replicas", "get_number_of_shards"];
    let divides = |line: &Line| DIVIDES.iter().any(|word| has(line, word)) || has(line, "cross_replica_sum");
    if !lines.iter().any(|line| calls_of(line, "tf", "gradients")) || lines.iter().any(divides) {
        return Vec::new();
    }
    let wrapped = lines.iter().filter_map(|line| match &line.tokens[..] {
        [Token::Name(name), equals, value @ ..] if equals.is("=") => Some((name, value)),
        _ => None,
    });
    let wrapped = wrapped.filter(|(_, value)| called(value) == Some("CrossShardOptimizer")).map(|(name, _)| name);
    let wrapped: Vec<&String> = wrapped.collect();
    let applies = |line: &&Line| wrapped.iter().any(|name| calls_of(line, name, "apply_gradients"));
    let kind = SlipKind::SumOverCores;
    let finding = |line: &Line| slip(line.number, kind.what(), kind.why(), kind.mend());
    lines.iter().find(applies).map(finding).into_iter().collect()
}

const DECAYS: [&str; 15] = [
    "exponential_decay",
    "polynomial_decay",
    "cosine_decay",
    "piecewise_constant",
    "piecewise_constant_decay",
    "inverse_time_decay",
    "natural_exp_decay",
    "linear_cosine_decay",
    "cosine_decay_restarts",
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
];

/// Keras' callbacks that set a rate.
const CALLBACKS: [&str; 2] = ["LearningRateScheduler", "ReduceLROnPlateau"];

/// Calls that show a value and do not train with it.
const SHOWS: [&str; 7] = ["scalar", "add_scalar", "scalar_summary", "histogram", "print", "info", "debug"];

pub(super) fn rate_without_use(script: &Script) -> Vec<Finding> {
    // A rate that is only shown, or an object's, may be another file's.
    let has_optimizer = script.lines().iter().any(makes_optimizer);
    let what = "a learning rate that is computed and not used";
    let mut hits = Vec::new();
    for (at, line) in script.lines().iter().enumerate() {
        let (name, is_field) = match &line.tokens[..] {
            [Token::Name(name), equals, ..] if equals.is("=") => (name, false),
            [Token::Name(object), dot, Token::Name(name), equals, ..]
                if object == "self" && dot.is(".") && equals.is("=") =>
            {
                (name, true)
            }
            _ => continue,
        };
        let is_callback = CALLBACKS.iter().any(|callback| calls(line, callback));
        if !is_callback && !DECAYS.iter().any(|decay| calls(line, decay)) {
            continue;
        }
        let reads = |counts_shown: bool| {
            script.lines().iter().enumerate().filter(|(other, _)| *other != at).any(|(_, other)| {
                let is_shown = SHOWS.iter().any(|show| calls(other, show)) && !makes_optimizer(other);
                (counts_shown || !is_shown) && is_read(other, name)
            })
        };
        let is_unused = match is_field || is_callback {
            true => (has_optimizer || script.any("fit")) && !reads(true),
            false => !reads(!has_optimizer),
        };
        if is_unused && is_callback {
            let why = "the rate then stays as it is";
            hits.push(slip(line.number, what, why, "model.fit(…, callbacks=[…]) takes the callback"));
        } else if is_unused {
            let why = "the optimizer then has another one, often a constant";
            hits.push(slip(line.number, what, why, "give it to the optimizer: …Optimizer(learning_rate=…)"));
        }
    }
    hits
}

/// Whether a line reads a name, as a variable's or a field's; to assign it is not to read it.
fn is_read(line: &Line, name: &str) -> bool {
    let assigned = match &line.tokens[..] {
        [Token::Name(known), equals, ..] if known == name && equals.is("=") => 1,
        [Token::Name(_), dot, Token::Name(known), equals, ..] if dot.is(".") && known == name && equals.is("=") => 3,
        _ => 0,
    };
    // A flag of the same name, and an argument's name, are others.
    let flags = ["FLAGS", "flags", "args", "params", "hparams", "config", "cfg"];
    let tokens = &line.tokens[assigned..];
    let is_other = |at: usize| {
        let owner = at.checked_sub(2).filter(|_| tokens[at - 1].is(".")).and_then(|owner| tokens[owner].name());
        let is_argument = at > 0
            && (tokens[at - 1].is("(") || tokens[at - 1].is(","))
            && tokens.get(at + 1).is_some_and(|next| next.is("="));
        owner.is_some_and(|owner| flags.contains(&owner)) || is_argument
    };
    (0..tokens.len()).any(|at| tokens[at].name() == Some(name) && !is_other(at))
}

/// Whether a line makes an optimizer of TensorFlow or Keras.
fn makes_optimizer(line: &Line) -> bool {
    let keras = ["SGD", "Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Nadam", "Ftrl"];
    line.tokens.windows(2).any(|pair| {
        let is_class = |name: &str| name.len() > 9 && name.ends_with("Optimizer") || keras.contains(&name);
        pair[1].is("(") && pair[0].name().is_some_and(is_class)
    })
}
