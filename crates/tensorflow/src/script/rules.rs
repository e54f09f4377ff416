//! The rules of the script lint: each is a function from a script's lines to findings.

mod entry;
mod evaluation;
mod frameworks;
mod input;
mod keras;
mod losses;
mod optimizers;
mod unread;

pub use keras::SequentialModel;

use super::tokens::{self, Line, Lines, Token};
use crate::ported::SlipKind;

/// A finding of the lint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The line, counted from 1.
    pub line: u32,
    /// The mistake, or the construct.
    pub what: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// The corrected line, or bf16scope's counterpart.
    pub mend: &'static str,
    /// Whether it is a mistake; else the line is correct and only has a counterpart here.
    pub is_slip: bool,
}

/// The result of linting a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScriptReading {
    /// Sorted by line.
    pub findings: Vec<Finding>,
    /// Imported modules, which were not read.
    pub not_followed: Vec<String>,
    /// Constructs that no rule reads, by name, each with its lines.
    pub not_read: Vec<(&'static str, Vec<u32>)>,
    /// The first `Sequential` of Keras, as an experiment.
    pub sequential: Option<SequentialModel>,
    /// Whether it is a script of TensorFlow, which can be traced.
    pub is_tensorflow: bool,
    /// The name to trace: of a `model_fn`, a `tf.function`, a Keras model or a function that makes one.
    pub entry: Option<String>,
}

/// Lints a script.
pub fn read_script(text: &str) -> ScriptReading {
    let script = Script::new(tokens::read(text));
    let mut findings = Vec::new();
    for rule in RULES {
        findings.extend(rule(&script));
    }
    findings.sort_by_key(|finding| finding.line);
    findings.dedup();
    ScriptReading {
        findings,
        not_followed: script.not_followed(),
        not_read: unread::unread(&script),
        sequential: keras::sequential(&script),
        is_tensorflow: entry::is_tensorflow(&script),
        entry: entry::entry(&script),
    }
}

type RuleOfScript = fn(&Script) -> Vec<Finding>;

const RULES: [RuleOfScript; 19] = [
    scope_around_compile,
    scope_in_a_comment,
    cast_without_use,
    cast_never_read,
    statistics_through_a_cast,
    statistics_by_hand,
    scaling_with_bf16,
    half_on_a_tpu,
    optimizers::optimizer_without_shards,
    optimizers::gradients_summed,
    optimizers::rate_without_use,
    input::remainder_kept,
    input::batch_of_all_hosts,
    input::long_labels,
    losses::probabilities_as_logits,
    losses::logits_as_probabilities,
    losses::regulariser_without_use,
    evaluation::evaluation_without_scope,
    frameworks::other_forms,
];

struct Script {
    lines: Lines,
    is_tpu: bool,
}

impl Script {
    fn new(lines: Lines) -> Script {
        let words = [
            "TPUEstimator",
            "TPUEstimatorSpec",
            "TPUStrategy",
            "TPUClusterResolver",
            "CrossShardOptimizer",
            "xla_device",
            "torch_xla",
        ];
        let is_tpu = lines.lines.iter().any(|line| words.iter().any(|word| has(line, word)));
        Script { lines, is_tpu }
    }

    fn lines(&self) -> &[Line] {
        &self.lines.lines
    }

    fn any(&self, word: &str) -> bool {
        self.lines().iter().any(|line| has(line, word))
    }

    /// The lines of the block that line `at` opens.
    fn block(&self, at: usize) -> &[Line] {
        let rest = &self.lines()[at + 1..];
        let end = rest.iter().position(|line| line.indent <= self.lines()[at].indent).unwrap_or(rest.len());
        &rest[..end]
    }

    /// Whether line `at` is in a branch: of an `if`, `elif` or `else`, in any block around it.
    fn is_in_branch(&self, at: usize) -> bool {
        let mut indent = self.lines()[at].indent;
        self.lines()[..at].iter().rev().any(|line| {
            let is_around = line.indent < indent;
            indent = indent.min(line.indent);
            is_around && matches!(line.tokens.first().and_then(Token::name), Some("if" | "elif" | "else"))
        })
    }

    /// The function around line `at`: its first line, and the number of the first line behind it.
    fn function_around(&self, at: usize) -> Option<(usize, usize)> {
        let lines = self.lines();
        let is_def = |line: &Line| line.tokens.first().and_then(Token::name) == Some("def");
        let first = (0..at).rev().find(|first| lines[*first].indent < lines[at].indent && is_def(&lines[*first]))?;
        let end = first + 1 + self.block(first).len();
        (at < end).then_some((first, end))
    }

    /// The value last assigned to a name before line `at`, within that line's function, and the line of the assignment.
    fn value_of(&self, name: &str, at: usize) -> Option<(usize, &[Token])> {
        let indent = self.lines()[at].indent;
        let starts_function = |line: &Line| {
            line.indent < indent
                && line.tokens.first().and_then(Token::name).is_some_and(|word| word == "def" || word == "class")
        };
        let before = self.lines()[..at].iter().enumerate().rev().take_while(|(_, line)| !starts_function(line));
        let mut values = before.filter_map(|(at, line)| match &line.tokens[..] {
            [Token::Name(known), equals, value @ ..] if equals.is("=") && known == name => Some((at, value)),
            _ => None,
        });
        values.next()
    }

    fn not_followed(&self) -> Vec<String> {
        const KNOWN: [&str; 24] = [
            "__future__",
            "absl",
            "argparse",
            "collections",
            "copy",
            "functools",
            "itertools",
            "json",
            "keras",
            "logging",
            "math",
            "numpy",
            "os",
            "random",
            "re",
            "six",
            "sys",
            "tensorflow",
            "tensorflow_datasets",
            "tf_slim",
            "time",
            "torch",
            "typing",
            "yaml",
        ];
        let module = |line: &Line| match line.tokens.first()?.name()? {
            "import" | "from" => line.tokens.get(1)?.name().map(str::to_string),
            _ => None,
        };
        let mut names: Vec<String> =
            self.lines().iter().filter_map(module).filter(|name| !KNOWN.contains(&name.as_str())).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn has(line: &Line, word: &str) -> bool {
    has_name(&line.tokens, word)
}

fn has_name(tokens: &[Token], word: &str) -> bool {
    tokens.iter().any(|token| token.name() == Some(word))
}

fn has_text(line: &Line, part: &str) -> bool {
    line.tokens.iter().any(|token| matches!(token, Token::Text(text) if text.contains(part)))
}

/// Whether a line calls `word(…)`, also as a method.
fn calls(line: &Line, word: &str) -> bool {
    line.tokens.windows(2).any(|pair| pair[0].name() == Some(word) && pair[1].is("("))
}

/// Whether a line calls `owner.word(…)`.
fn calls_of(line: &Line, owner: &str, word: &str) -> bool {
    line.tokens
        .windows(4)
        .any(|four| four[0].name() == Some(owner) && four[1].is(".") && four[2].name() == Some(word) && four[3].is("("))
}

/// The tokens of the arguments of the first call of `word`.
fn arguments<'l>(line: &'l Line, word: &str) -> &'l [Token] {
    arguments_in(&line.tokens, word)
}

fn arguments_in<'l>(tokens: &'l [Token], word: &str) -> &'l [Token] {
    let Some(at) = tokens.windows(2).position(|pair| pair[0].name() == Some(word) && pair[1].is("(")) else {
        return &[];
    };
    let inside = &tokens[at + 2..];
    let mut depth = 1;
    for (n, token) in inside.iter().enumerate() {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &inside[..n];
        }
    }
    inside
}

/// The argument of a call with this keyword, or at this position.
fn argument<'l>(line: &'l Line, word: &str, name: &str, place: usize) -> &'l [Token] {
    argument_in(&line.tokens, word, name, place)
}

fn argument_in<'l>(tokens: &'l [Token], word: &str, name: &str, place: usize) -> &'l [Token] {
    let mut depth = 0;
    let mut parts = arguments_in(tokens, word).split(|token| {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            _ => {}
        }
        depth == 0 && token.is(",")
    });
    let is_named = |part: &[Token]| part.len() > 1 && part[1].is("=");
    let all: Vec<&[Token]> = parts.by_ref().collect();
    let named = all.iter().find(|part| is_named(part) && part[0].name() == Some(name)).map(|part| &part[2..]);
    named.or_else(|| all.get(place).copied().filter(|part| !is_named(part))).unwrap_or_default()
}

/// The function that an expression calls, unless the call is only a part of it.
fn called(value: &[Token]) -> Option<&str> {
    let open = value.iter().position(|token| token.is("("))?;
    let (mut depth, mut end) = (0, open);
    for (at, token) in value.iter().enumerate().skip(open) {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            end = at;
            break;
        }
    }
    let is_path = value[..open].iter().all(|token| token.name().is_some() || token.is("."));
    open.checked_sub(1).and_then(|at| value[at].name()).filter(|_| is_path && end + 1 == value.len())
}

fn is_import(line: &Line) -> bool {
    matches!(line.tokens.first().and_then(Token::name), Some("import" | "from"))
}

fn says_bf16(line: &Line) -> bool {
    has(line, "bfloat16") || has_text(line, "bfloat16")
}

fn says_half(line: &Line) -> bool {
    let is_half =
        |text: &str| text.contains("float16") && (!text.contains("bfloat16") || text.contains("mixed_float16"));
    has(line, "float16") || line.tokens.iter().any(|token| matches!(token, Token::Text(text) if is_half(text)))
}

/// Whether a line has the name of Keras' mixed-precision policy for a dtype.
fn is_policy_of(line: &Line, dtype: &str) -> bool {
    line.tokens.iter().any(|token| matches!(token, Token::Text(text) if text.strip_prefix("mixed_") == Some(dtype)))
}

fn slip(line: u32, what: &'static str, why: &'static str, mend: &'static str) -> Finding {
    Finding { line, what, why, mend, is_slip: true }
}

fn opens_scope(line: &Line) -> bool {
    line.tokens.first().and_then(Token::name) == Some("with") && has(line, "bfloat16_scope")
}

fn scope_around_compile(script: &Script) -> Vec<Finding> {
    let around = (0..script.lines().len()).filter(|at| {
        opens_scope(&script.lines()[*at]) && {
            let block = script.block(*at);
            block.iter().any(|line| calls(line, "compile") && !calls_of(line, "re", "compile"))
                || (!block.is_empty() && block.iter().all(|line| calls(line, "fit")))
        }
    });
    let what = "bfloat16_scope around a Keras model's compile";
    let why = "compile asks for no variables, so the scope changes nothing";
    let mend = "Keras' own bfloat16 policy, by tf.keras.mixed_precision.set_global_policy before the layers are made";
    around.map(|at| slip(script.lines()[at].number, what, why, mend)).collect()
}

fn scope_in_a_comment(script: &Script) -> Vec<Finding> {
    // A sentence that begins with "with" has no colon at its end.
    let is_scope = |text: &str| {
        let text = text.trim();
        text.contains("bfloat16_scope(") && text.starts_with("with ") && text.ends_with(':')
    };
    let hits = script.lines.comments.iter().filter(|(_, text)| is_scope(text));
    let why = "the network is then float32, whatever the flag says";
    let what = "a bfloat16_scope that is commented out";
    hits.map(|(line, _)| slip(*line, what, why, "take the # away, and indent what it is about")).collect()
}

const UNUSED_CAST: &str = "a cast whose result is not used";

/// Why an unused cast is a mistake, and the line that is meant.
fn unused_cast(line: &Line) -> Finding {
    match says_bf16(line) {
        true => slip(
            line.number,
            UNUSED_CAST,
            "a cast gives a new tensor; the old one stays f32",
            "x = tf.cast(x, tf.bfloat16)",
        ),
        false => slip(
            line.number,
            UNUSED_CAST,
            "a cast gives a new tensor; the old one stays bfloat16",
            "logits = tf.cast(logits, tf.float32), and give these to the loss",
        ),
    }
}

fn cast_without_use(script: &Script) -> Vec<Finding> {
    let is_alone = |line: &&Line| {
        let names =
            line.tokens.iter().take_while(|token| !token.is("(")).filter(|token| token.name().is_some()).count();
        let is_call = matches!(&line.tokens[..], [Token::Name(first), ..] if first != "return" && first != "yield")
            && line.tokens.last().is_some_and(|token| token.is(")"));
        let word = line.tokens.iter().take_while(|token| !token.is("(")).last().and_then(Token::name);
        let is_cast = match word {
            Some("cast") => says_bf16(line) || has(line, "float32"),
            Some("to") => says_bf16(line) && !is_module(script, line),
            _ => false,
        };
        is_call
            && names > 1
            && is_cast
            && !line
                .tokens
                .iter()
                .any(|token| token.is("=") && line.tokens.first() != Some(token) && !in_brackets(line, token))
    };
    script.lines().iter().filter(is_alone).map(unused_cast).collect()
}

/// Whether a line begins with a module of PyTorch, which `to` changes in place: by its name, or by the class that made it.
fn is_module(script: &Script, line: &Line) -> bool {
    let names: Vec<&str> = line.tokens.iter().take_while(|token| !token.is("(")).filter_map(Token::name).collect();
    let Some(receiver) = names.len().checked_sub(2).map(|at| names[at]) else { return false };
    let words = ["model", "net", "module", "encoder", "decoder", "backbone", "generator", "discriminator"];
    let lower = receiver.to_lowercase();
    let is_class = |name: &str| name.starts_with(char::is_uppercase);
    let makes = |made: &Line| match &made.tokens[..] {
        [Token::Name(known), equals, value @ ..] if known == receiver && equals.is("=") => {
            called(value).is_some_and(is_class)
        }
        _ => false,
    };
    words.iter().any(|word| lower.contains(word)) || script.lines().iter().any(makes)
}

/// Casts in a function whose name nothing in that function reads.
fn cast_never_read(script: &Script) -> Vec<Finding> {
    let mut hits = Vec::new();
    for (at, line) in script.lines().iter().enumerate() {
        let [Token::Name(name), equals, value @ ..] = &line.tokens[..] else { continue };
        let is_cast = equals.is("=") && called(value) == Some("cast") && (says_bf16(line) || has(line, "float32"));
        if !is_cast {
            continue;
        }
        let Some((first, end)) = script.function_around(at) else { continue };
        let in_text = format!("{{{name}");
        let reads = |other: usize| {
            let line = &script.lines()[other];
            let tokens = match &line.tokens[..] {
                [Token::Name(known), equals, value @ ..] if known == name && equals.is("=") => value,
                tokens => tokens,
            };
            has_name(tokens, name) || has_text(line, &in_text) || has(line, "locals")
        };
        // A function that ends without a result may leave it to what the file does not show.
        let returns =
            (first + 1..end).any(|other| script.lines()[other].tokens.first().and_then(Token::name) == Some("return"));
        if returns && !(first + 1..end).any(|other| other != at && reads(other)) {
            hits.push(unused_cast(line));
        }
    }
    hits
}

/// Whether the first token equal to this one is inside brackets.
fn in_brackets(line: &Line, wanted: &Token) -> bool {
    let mut depth = 0;
    for token in &line.tokens {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            token if token == wanted => return depth > 0,
            _ => {}
        }
    }
    false
}

fn statistics_through_a_cast(script: &Script) -> Vec<Finding> {
    let is_moving = |name: &str| name.contains("moving_mean") || name.contains("moving_var");
    let assigns_statistics = |line: &Line| {
        ["assign", "assign_sub", "assign_add", "assign_moving_average"].iter().any(|word| calls(line, word))
            && line.tokens.iter().filter_map(Token::name).any(is_moving)
    };
    let is_statistics = |line: &&Line| assigns_statistics(line) && says_bf16(line) && calls(line, "cast");
    let what = "moving statistics assigned through a cast to bf16";
    let why = "an average with momentum 0.99 takes no change below 1/256 of itself";
    let mend = "assign the f32 value; batch norm's variables stay f32 in a bf16 scope";
    let mut hits: Vec<Finding> =
        script.lines().iter().filter(is_statistics).map(|line| slip(line.number, what, why, mend)).collect();
    // Rounded under another name before the assignment.
    for (at, line) in script.lines().iter().enumerate().filter(|(_, line)| assigns_statistics(line)) {
        let rounded = line.tokens.iter().filter_map(Token::name).filter_map(|name| script.value_of(name, at));
        let rounded = rounded.filter(|(_, value)| called(value) == Some("cast") && has_name(value, "bfloat16"));
        // The cast is of the average itself, or of the batch's statistics, which an average in f32 takes as they are.
        let is_average = |value: &[Token]| value.iter().filter_map(Token::name).any(is_moving);
        hits.extend(
            rounded
                .filter(|(_, value)| is_average(value))
                .map(|(at, _)| slip(script.lines()[at].number, what, why, mend)),
        );
    }
    hits
}

/// A batch norm by hand in a bf16 scope: a mean of squares over the batch, and a root of it.
fn statistics_by_hand(script: &Script) -> Vec<Finding> {
    let mut hits = Vec::new();
    let scopes = (0..script.lines().len()).filter(|at| opens_scope(&script.lines()[*at]));
    for block in scopes.map(|at| script.block(at)) {
        for (at, line) in block.iter().enumerate() {
            let (name, word) = match &line.tokens[..] {
                [Token::Name(name), equals, ..] if equals.is("=") => (name, "reduce_mean"),
                [Token::Name(_), comma, Token::Name(name), equals, ..] if comma.is(",") && equals.is("=") => {
                    (name, "moments")
                }
                _ => continue,
            };
            let is_square = |token: &Token| matches!(token.name(), Some("square" | "squared_difference"));
            let is_mean = word == "moments" || arguments(line, word).iter().any(is_square);
            let axes = match argument(line, word, "axis", 1) {
                [] => argument(line, word, "axes", 1),
                axes => axes,
            };
            let is_zero = |token: &Token| *token == Token::Number("0".to_string());
            let is_over_batch = matches!(axes, [first] if is_zero(first))
                || matches!(axes, [open, first, ..] if (open.is("[") || open.is("(")) && is_zero(first));
            let casts = |line: &Line| calls(line, "cast") && has(line, "float32") || calls(line, "to_float");
            let is_f32 = block[..=at].iter().any(casts);
            let roots = ["rsqrt", "sqrt", "batch_normalization"];
            let is_root = |line: &Line| roots.iter().any(|root| has_name(arguments(line, root), name));
            if is_mean && is_over_batch && !is_f32 && block[at + 1..].iter().any(is_root) {
                // A graph shows the same slip.
                let kind = SlipKind::Bf16Statistics;
                hits.push(slip(line.number, kind.what(), kind.why(), kind.mend()));
            }
        }
    }
    hits
}

fn scaling_with_bf16(script: &Script) -> Vec<Finding> {
    let is_bf16 =
        script.lines().iter().any(|line| is_policy_of(line, "bfloat16") || (script.any("torch") && says_bf16(line)));
    if !is_bf16 {
        return Vec::new();
    }
    // A script for both dtypes scales in a branch, or by `enabled`.
    let is_for_both = script.lines().iter().any(says_half);
    let scales = |(at, line): &(usize, &Line)| {
        let is_switched = !argument(line, "GradScaler", "enabled", usize::MAX).is_empty();
        (calls(line, "LossScaleOptimizer") || calls(line, "GradScaler") || calls(line, "scale_loss"))
            && !(is_for_both && (is_switched || script.is_in_branch(*at)))
    };
    let what = "loss scaling with bfloat16";
    let why = "bfloat16 has f32's range, so no gradient underflows for want of a scale";
    let hits = script.lines().iter().enumerate().filter(scales);
    hits.map(|(_, line)| slip(line.number, what, why, "leave the scaling out")).collect()
}

fn half_on_a_tpu(script: &Script) -> Vec<Finding> {
    if !script.is_tpu {
        return Vec::new();
    }
    // Where bfloat16 is chosen too, the other branch is a GPU's.
    let has_bf16 = script.lines().iter().any(says_bf16);
    // `model.half()` of PyTorch.
    let halves = |line: &Line| {
        line.tokens
            .windows(4)
            .any(|four| four[0].is(".") && four[1].name() == Some("half") && four[2].is("(") && four[3].is(")"))
    };
    let is_half = |(at, line): &(usize, &Line)| {
        (says_half(line) || halves(line)) && !(has_bf16 && (says_bf16(line) || script.is_in_branch(*at)))
    };
    let what = "float16 on a TPU";
    script
        .lines()
        .iter()
        .enumerate()
        .filter(is_half)
        .map(|(_, line)| {
            slip(
                line.number,
                what,
                "a TPU's units take bfloat16; f16 ends at 65504",
                "tf.bfloat16, or Keras' policy of it",
            )
        })
        .collect()
}
