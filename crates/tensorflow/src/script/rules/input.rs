//! Input pipelines and labels: batches that keep a remainder, batches of all hosts, labels of 64 bits.

use super::{Finding, Line, Script, Token, argument, arguments, calls, calls_of, has, has_text, slip};

pub(super) fn remainder_kept(script: &Script) -> Vec<Finding> {
    if !["TPUEstimator", "TPUEstimatorSpec", "TPUStrategy"].iter().any(|word| script.any(word)) {
        return Vec::new();
    }
    let keeps = |line: &&Line| {
        [("batch", 1), ("map_and_batch", 3), ("padded_batch", 3)].iter().any(|(word, place)| {
            let after_dot = line
                .tokens
                .windows(3)
                .any(|three| three[0].is(".") && three[1].name() == Some(word) && three[2].is("("));
            let keeps = match argument(line, word, "drop_remainder", *place) {
                [] => true,
                [Token::Name(value)] => value == "False",
                _ => false,
            };
            // `tf.train.batch` is a queue's, of whole batches.
            after_dot && keeps && !calls_of(line, "train", word)
        })
    };
    let what = "a batch without drop_remainder";
    let why = "the last batch is smaller, and a TPU's program has one shape";
    script
        .lines()
        .iter()
        .filter(keeps)
        .map(|line| slip(line.number, what, why, ".batch(batch_size, drop_remainder=True)"))
        .collect()
}

pub(super) fn batch_of_all_hosts(script: &Script) -> Vec<Finding> {
    if !script.any("TPUEstimator") {
        return Vec::new();
    }
    let takes_all = |line: &&Line| {
        ["batch", "map_and_batch"].iter().any(|word| {
            let passed = arguments(line, word);
            passed.iter().any(|token| token.name() == Some("FLAGS"))
                && !passed.iter().any(|token| token.is("/") || token.is("//"))
                && passed.iter().any(|token| token.name().is_some_and(|name| name.ends_with("batch_size")))
        })
    };
    let what = "the global batch in input_fn";
    let why = "TPUEstimator calls input_fn for each host or core, and gives its share in params['batch_size']";
    script
        .lines()
        .iter()
        .filter(takes_all)
        .map(|line| slip(line.number, what, why, "batch_size = params['batch_size']"))
        .collect()
}

pub(super) fn long_labels(script: &Script) -> Vec<Finding> {
    if !script.is_tpu {
        return Vec::new();
    }
    // Metrics of a TPUEstimator are computed on the host.
    let is_metric = |at: usize| {
        let function = script.function_around(at).and_then(|(first, _)| script.lines()[first].tokens.get(1)?.name());
        function.is_some_and(|name| name.contains("metric"))
    };
    let is_label = |token: &Token| match token {
        Token::Name(text) | Token::Text(text) => text.starts_with("label") || text.ends_with("/label"),
        _ => false,
    };
    let is_long = |(at, line): &(usize, &Line)| {
        let casts = ["cast", "to_int64"].iter().map(|word| arguments(line, word));
        (calls(line, "cast") && has(line, "int64") || calls(line, "to_int64"))
            && casts.flatten().any(is_label)
            && !is_metric(*at)
    };
    let (why, mend) = ("a TPU has no 64-bit integers but in pairs", "tf.cast(labels, tf.int32)");
    let lines = script.lines();
    let mut hits: Vec<Finding> = lines
        .iter()
        .enumerate()
        .filter(is_long)
        .map(|(_, line)| slip(line.number, "labels cast to int64", why, mend))
        .collect();
    // Records hold int64 alone, so a parser has to narrow its labels.
    let narrows = |line: &Line| has(line, "int32") || calls(line, "to_int32") || has_text(line, "int32");
    let parses = |line: &&Line| has_feature_of(line, "int64", is_label);
    if hits.is_empty() && !lines.iter().any(narrows) {
        let what = "labels that stay int64";
        hits.extend(lines.iter().filter(parses).take(1).map(|line| slip(line.number, what, why, mend)));
    }
    hits
}

/// Whether a line has a `FixedLenFeature` of a dtype under such a key.
fn has_feature_of(line: &Line, dtype: &str, is_key: impl Fn(&Token) -> bool) -> bool {
    line.tokens.iter().enumerate().any(|(at, token)| {
        let behind = &line.tokens[at + 1..];
        let feature = behind.iter().take(8).position(|token| token.name() == Some("FixedLenFeature"));
        is_key(token)
            && feature.is_some_and(|first| {
                let rest = &behind[first + 1..];
                let next = rest.iter().position(|token| token.name() == Some("FixedLenFeature")).unwrap_or(rest.len());
                rest[..next].iter().any(|token| token.name() == Some(dtype))
            })
    })
}
