//! Keras' `Sequential` of literals as an experiment of `kind: layers`. What is no literal, or has no word, is listed as not
//! followed, and never guessed.

use std::fmt::Write as _;

use super::{Line, Script, Token, argument_in, arguments_in, called};

/// A `Sequential` that a script makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequentialModel {
    /// The line that makes it.
    pub line: u32,
    /// The experiment in YAML; `None` if a layer, the input's shape or the loss is not followed.
    pub experiment: Option<String>,
    /// Words that are not followed, with their lines.
    pub not_followed: Vec<(u32, String)>,
}

/// A layer of Keras and its words.
struct Word {
    keras: &'static [&'static str],
    kind: &'static str,
    /// Names of arguments by position. The first one is the kind's own value.
    places: &'static [&'static str],
    /// The default value of the kind; empty if the script has to write one, or if the kind has no default.
    default: &'static str,
    options: &'static [&'static str],
}

const CONVOLUTION: [&str; 4] = ["filters", "kernel_size", "strides", "padding"];
const CONVOLUTIONS: [&str; 6] = ["kernel_size", "strides", "padding", "dilation_rate", "activation", "use_bias"];
const POOL: [&str; 3] = ["pool_size", "strides", "padding"];

const fn word(
    keras: &'static [&'static str],
    kind: &'static str,
    places: &'static [&'static str],
    default: &'static str,
    options: &'static [&'static str],
) -> Word {
    Word { keras, kind, places, default, options }
}

static LAYERS: [Word; 20] = [
    word(&["Dense"], "dense", &["units", "activation"], "", &["activation", "use_bias"]),
    word(&["Conv2D", "Convolution2D"], "conv", &CONVOLUTION, "", &CONVOLUTIONS),
    word(&["Conv1D", "Convolution1D"], "conv1d", &CONVOLUTION, "", &CONVOLUTIONS),
    word(&["Conv2DTranspose"], "conv_transpose", &CONVOLUTION, "", &CONVOLUTIONS),
    word(&["SeparableConv2D"], "separable_conv", &CONVOLUTION, "", &CONVOLUTIONS),
    word(&["DepthwiseConv2D"], "depthwise_conv", &["kernel_size", "strides", "padding"], "", &CONVOLUTIONS),
    word(&["MaxPooling2D", "MaxPool2D", "MaxPooling1D", "MaxPool1D"], "max_pool", &POOL, "2", &POOL),
    word(&["AveragePooling2D", "AvgPool2D", "AveragePooling1D", "AvgPool1D"], "avg_pool", &POOL, "2", &POOL),
    word(&["GlobalMaxPooling2D", "GlobalMaxPooling1D"], "global_max_pool", &[], "", &[]),
    word(&["GlobalAveragePooling2D", "GlobalAveragePooling1D"], "global_avg_pool", &[], "", &[]),
    word(&["Flatten"], "flatten", &[], "", &[]),
    word(&["Dropout"], "dropout", &["rate"], "", &[]),
    word(&["Activation"], "activation", &["activation"], "", &[]),
    word(&["ReLU"], "activation", &[], "relu", &[]),
    word(&["Softmax"], "activation", &[], "softmax", &[]),
    word(&["LeakyReLU"], "leaky_relu", &["alpha"], "0.3", &[]),
    word(&["BatchNormalization"], "batch_norm", &[], "", &["momentum", "epsilon", "center", "scale"]),
    word(&["LayerNormalization"], "layer_norm", &[], "", &["epsilon", "center", "scale"]),
    word(&["Embedding"], "embedding", &["input_dim", "output_dim"], "", &["output_dim"]),
    word(&["Reshape"], "reshape", &["target_shape"], "", &[]),
];

const ACTIVATIONS: [&str; 13] = [
    "elu",
    "exponential",
    "gelu",
    "linear",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
];

/// A layer that is read.
struct Layer {
    kind: &'static str,
    main: String,
    options: Vec<(String, String)>,
}

/// The part of a `Sequential` that is read.
#[derive(Default)]
struct Reading {
    layers: Vec<Layer>,
    input: Option<String>,
    /// Whether it is listed why the shape of the input is not read.
    is_input_listed: bool,
    /// The loss's word, and whether it takes logits.
    loss: Option<(&'static str, bool)>,
    has_compile: bool,
    is_whole: bool,
    not_followed: Vec<(u32, String)>,
}

/// The first `Sequential` of a script.
pub(super) fn sequential(script: &Script) -> Option<SequentialModel> {
    let lines = script.lines();
    let (at, model, value) = lines.iter().enumerate().find_map(|(at, line)| match &line.tokens[..] {
        [Token::Name(model), equals, value @ ..] if equals.is("=") && called(value) == Some("Sequential") => {
            Some((at, model.as_str(), value))
        }
        _ => None,
    })?;
    let number = lines[at].number;
    let mut reading = Reading { is_whole: true, ..Reading::default() };
    match &parts(arguments_in(value, "Sequential"))[..] {
        [] => {}
        [[open, listed @ .., close], ..] if open.is("[") && close.is("]") => {
            parts(listed).into_iter().for_each(|layer| reading.layer(number, layer));
        }
        _ => reading.leave_out(number, "layers that are no list".to_string()),
    }
    for line in &lines[at + 1..] {
        let is_new = matches!(&line.tokens[..], [Token::Name(name), equals, ..] if name == model && equals.is("="));
        if line.indent < lines[at].indent || is_new {
            break;
        }
        if let [Token::Name(name), dot, Token::Name(method), open, ..] = &line.tokens[..]
            && name == model
            && dot.is(".")
            && open.is("(")
        {
            reading.call(line, method, line.indent == lines[at].indent);
        }
    }
    let experiment = reading.experiment(number);
    Some(SequentialModel { line: number, experiment, not_followed: reading.not_followed })
}

impl Reading {
    /// Something without which the network is another one.
    fn leave_out(&mut self, line: u32, text: String) {
        self.is_whole = false;
        self.not_followed.push((line, text));
    }

    /// A call of one of the model's methods.
    fn call(&mut self, line: &Line, method: &str, is_straight: bool) {
        let (tokens, number) = (&line.tokens[..], line.number);
        match method {
            "add" if is_straight => match parts(arguments_in(tokens, "add"))[..] {
                [layer] => self.layer(number, layer),
                _ => self.leave_out(number, "`add` without a layer".to_string()),
            },
            "add" | "pop" => self.leave_out(number, format!("`{method}` in a branch or a loop, or of a layer before")),
            "compile" => {
                self.has_compile = true;
                let loss = argument_in(tokens, "compile", "loss", 1);
                let from_logits = argument_in(loss, called(loss).unwrap_or_default(), "from_logits", 0);
                let takes_logits = matches!(from_logits, [Token::Name(value)] if value == "True");
                let name = match loss {
                    [Token::Text(text)] => Some(text.as_str()),
                    _ => called(loss),
                };
                self.loss = name.and_then(loss_word).map(|word| (word, takes_logits));
                self.not_followed.push((number, "`compile` but for its loss".to_string()));
            }
            "fit" => self.not_followed.push((number, "`fit`".to_string())),
            _ => {}
        }
    }

    fn layer(&mut self, line: u32, tokens: &[Token]) {
        let Some(name) = called(tokens) else {
            return self.leave_out(line, "a layer that is no call".to_string());
        };
        let arguments = parts(arguments_in(tokens, name));
        if matches!(name, "Input" | "InputLayer") {
            let shape = ["shape", "input_shape"].into_iter().find_map(|key| {
                Some(argument_in(tokens, name, key, 0)).filter(|shape| !shape.is_empty()).and_then(list)
            });
            match (shape, &arguments[..]) {
                (Some(shape), [_]) => self.input = Some(shape),
                _ => {
                    self.is_input_listed = true;
                    self.leave_out(line, format!("`{name}` but for a shape of numbers"));
                }
            }
            return;
        }
        let Some(word) = LAYERS.iter().find(|word| word.keras.contains(&name)) else {
            return self.leave_out(line, format!("`{name}`"));
        };
        let mut layer = Layer { kind: word.kind, main: word.default.to_string(), options: Vec::new() };
        let mut has_main = !word.default.is_empty();
        for (place, argument) in arguments.iter().enumerate() {
            let (key, value) = match argument {
                [Token::Name(key), equals, value @ ..] if equals.is("=") => (key.as_str(), value),
                value => (word.places.get(place).copied().unwrap_or("an argument"), &value[..]),
            };
            has_main |= word.places.first() == Some(&key);
            self.argument(line, name, (word, key, value), &mut layer);
        }
        if let (false, Some(main)) = (has_main, word.places.first()) {
            self.leave_out(line, format!("`{name}` without `{main}`"));
        }
        self.layers.push(layer);
    }

    fn argument(&mut self, line: u32, name: &str, argument: (&Word, &str, &[Token]), layer: &mut Layer) {
        let (word, key, value) = argument;
        let is_first = self.layers.is_empty();
        match (key, literal(value)) {
            ("input_shape", Some(_)) if is_first && list(value).is_some() => self.input = list(value),
            ("input_dim", Some(n)) if is_first && word.kind == "dense" => self.input = Some(format!("[{n}]")),
            ("input_length", Some(n)) if is_first && word.kind == "embedding" => self.input = Some(format!("[{n}]")),
            // `Activation("linear")` is no layer here.
            ("activation", Some(function))
                if !ACTIVATIONS.contains(&function.as_str()) || function == "linear" && word.kind == "activation" =>
            {
                self.leave_out(line, format!("`activation={function}` of `{name}`"));
            }
            ("activation", Some(function)) if function == "linear" => {}
            (key, Some(value)) if word.places.first() == Some(&key) => layer.main = value,
            // A layer in f32 within another policy.
            ("dtype", Some(dtype)) if dtype == "float32" => layer.options.push((key.to_string(), dtype)),
            (key, Some(value)) if key == "name" || word.options.contains(&key) => {
                layer.options.push((key.to_string(), value));
            }
            (key, None) if word.places.first() == Some(&key) || word.options.contains(&key) => {
                self.leave_out(line, format!("`{key}` of `{name}`, which is no literal"));
            }
            (key, _) => {
                self.is_input_listed |= is_first && key.contains("input_");
                self.leave_out(line, format!("`{key}` of `{name}`"));
            }
        }
    }

    /// The experiment, if all of the network is read. A softmax or sigmoid at its end is the loss's here.
    fn experiment(&mut self, line: u32) -> Option<String> {
        let end = self.take_end();
        let loss = match (self.loss, end.as_deref()) {
            (Some((word @ ("sparse_softmax_cross_entropy" | "softmax_cross_entropy"), false)), Some("softmax")) => word,
            (Some((word @ "sigmoid_cross_entropy", false)), Some("sigmoid")) => word,
            (Some((word, true)), None) => word,
            (Some((word @ ("mean_squared_error" | "mean_absolute_error"), _)), None) => word,
            (None, Some(end)) if !self.has_compile => {
                let word = if end == "softmax" { "sparse_softmax_cross_entropy" } else { "sigmoid_cross_entropy" };
                self.not_followed.push((line, format!("a loss, which no `compile` names: it ends as for {word}")));
                word
            }
            _ => {
                self.leave_out(line, "its loss, or what the loss reads".to_string());
                ""
            }
        };
        if self.input.is_none() && !self.is_input_listed {
            self.leave_out(line, "the shape of its input".to_string());
        }
        let input = self.input.clone().filter(|_| self.is_whole && !self.layers.is_empty())?;
        let is_of_ids = self.layers.first().is_some_and(|layer| layer.kind == "embedding");
        let input = if is_of_ids { format!("{{shape: {input}, dtype: int32}}") } else { input };
        let mut text = format!("model:\n  kind: layers\n  inputs:\n    x: {input}\n  layers:\n");
        for Layer { kind, main, options } in &self.layers {
            let options: String = options.iter().map(|(key, value)| format!(", {key}: {value}")).collect();
            let _ = writeln!(text, "    - {{{kind}: {main}{options}}}");
        }
        let _ = writeln!(text, "  loss: {loss}");
        if loss.contains("softmax") {
            text.push_str("  metrics: [accuracy]\n");
        }
        text.push_str("train:\n  batch: 32\n");
        Some(text)
    }

    /// Takes the softmax or sigmoid at the network's end away.
    fn take_end(&mut self) -> Option<String> {
        let last = self.layers.last_mut()?;
        let is_end = |function: &String| function == "softmax" || function == "sigmoid";
        if last.kind == "activation" && is_end(&last.main) {
            return self.layers.pop().map(|layer| layer.main);
        }
        let at = last.options.iter().position(|(key, value)| key == "activation" && is_end(value))?;
        Some(last.options.remove(at).1)
    }
}

/// Our word for a loss of Keras, by its name or its class.
fn loss_word(name: &str) -> Option<&'static str> {
    Some(match name.to_lowercase().replace('_', "").as_str() {
        "sparsecategoricalcrossentropy" => "sparse_softmax_cross_entropy",
        "categoricalcrossentropy" => "softmax_cross_entropy",
        "binarycrossentropy" => "sigmoid_cross_entropy",
        "mse" | "meansquarederror" => "mean_squared_error",
        "mae" | "meanabsoluteerror" => "mean_absolute_error",
        _ => return None,
    })
}

/// The parts between commas outside of brackets.
fn parts(tokens: &[Token]) -> Vec<&[Token]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        match token {
            Token::Sign("(" | "[" | "{") => depth += 1,
            Token::Sign(")" | "]" | "}") => depth -= 1,
            _ => {}
        }
        depth == 0 && token.is(",")
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// A literal in YAML: a number, a word, a truth value, or a list of such.
fn literal(tokens: &[Token]) -> Option<String> {
    let number = |text: String| text.parse::<f64>().is_ok_and(f64::is_finite).then_some(text);
    match tokens {
        [Token::Name(name)] if name == "True" => Some("true".to_string()),
        [Token::Name(name)] if name == "False" => Some("false".to_string()),
        [Token::Text(text)] => {
            let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            is_plain.then(|| text.clone())
        }
        [Token::Number(text)] => number(text.replace('_', "")),
        [Token::Number(digits), minus, Token::Number(exponent)] if minus.is("-") && digits.ends_with('e') => {
            number(format!("{digits}-{exponent}"))
        }
        _ => list(tokens),
    }
}

/// A list or tuple of literals in YAML.
fn list(tokens: &[Token]) -> Option<String> {
    let [open, inside @ .., close] = tokens else { return None };
    let is_list = open.is("(") && close.is(")") || open.is("[") && close.is("]");
    let items: Option<Vec<String>> = parts(inside).into_iter().map(literal).collect();
    Some(format!("[{}]", items.filter(|_| is_list)?.join(", ")))
}
