//! Resolves the names in a configuration, before anything is built: what each layer, loss and metric reads.

use super::block::LAYERS_OF_A_BLOCK;
use super::constant::constant;
use super::{Arity, Config, Input, InputDType, Layer, LayerKind, Loss, Metric, MetricWeights};
use crate::document::{NodeError, Step, nearest};
use crate::task::Feature;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The source of a tensor: what a layer reads, or an output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    /// An input, by index.
    Input(usize),
    /// A layer, by index.
    Layer(usize),
    /// A last state of a recurrent layer: the layer's index, and the state's.
    State(usize, usize),
}

impl Source {
    /// The layer that computes it.
    pub fn layer(self) -> Option<usize> {
        match self {
            Source::Input(_) => None,
            Source::Layer(number) | Source::State(number, _) => Some(number),
        }
    }
}

/// A configuration with its names resolved.
#[derive(Clone, Debug, Default)]
pub(super) struct Wiring {
    /// The layers' names.
    pub names: Vec<String>,
    /// The inputs and layers by name: a file may name each of thousands.
    by_name: BTreeMap<String, Source>,
    /// The outputs by name, and the first output of each source.
    output_at: BTreeMap<String, usize>,
    first_output: BTreeMap<Source, usize>,
    /// The sources that each layer reads.
    pub reads: Vec<Vec<Source>>,
    /// For each layer that shares variables, the layer that owns them.
    pub owners: Vec<Option<usize>>,
    /// For each layer that is tied to a table, the layer that owns it.
    pub tied: Vec<Option<usize>>,
    /// Whether other layers use a layer's variables.
    pub is_shared: Vec<bool>,
    /// Whether a layer, a loss, a metric or an output reads a state of each layer.
    pub gives_state: Vec<bool>,
    /// The predictions.
    pub outputs: Vec<(String, Source)>,
    /// The source that each loss reads.
    pub losses: Vec<Source>,
    /// The second layer that a loss reads, such as transitions.
    pub others: Vec<Option<Source>>,
    /// The source that each metric reads.
    pub metrics: Vec<Source>,
    /// The feature with the weights of examples in each metric.
    pub metric_weights: Vec<Option<String>>,
}

/// The path to element `index` of the list `key`.
pub(super) fn at(key: &str, index: usize) -> Vec<Step> {
    vec![Step::Key(key.to_string()), Step::Index(index)]
}

pub(super) fn key(name: &str) -> Step {
    Step::Key(name.to_string())
}

/// The most layers of a network. A thousand of them take some seconds to build; the deepest published networks have a
/// thousand blocks.
pub(super) const MAX_LAYERS: i64 = 12_000;

impl Wiring {
    /// Resolves all names.
    ///
    /// # Errors
    /// Too many layers; unknown or ambiguous names; unused layers; the wrong number of inputs.
    pub fn new(config: &Config) -> Result<Wiring, NodeError> {
        let wiring = Wiring::looked_up(config)?;
        wiring.everything_is_read(config)?;
        Ok(wiring)
    }

    /// The layers of blocks that nothing reads, while other layers of the same use are read. Empty if names are wrong.
    pub fn unused(config: &Config) -> BTreeSet<usize> {
        let Ok(wiring) = Wiring::looked_up(config) else { return BTreeSet::new() };
        let use_of = |number: usize| wiring.names[number].split('/').next().unwrap_or_default();
        let [_, is_read] = wiring.read(config);
        let numbers = 0..config.layers.len();
        let used: BTreeSet<&str> = numbers.clone().filter(|&number| is_read[number]).map(use_of).collect();
        numbers.filter(|&number| !is_read[number] && used.contains(use_of(number))).collect()
    }

    fn looked_up(config: &Config) -> Result<Wiring, NodeError> {
        if config.layers.is_empty() {
            return Err(NodeError::new(vec![key("layers")], "there are no layers, expected at least one"));
        }
        let mut n_layers = 0;
        let mut sizes = config.layers.iter().map(|layer| layer.kind.n_layers());
        if let Some(number) = sizes.position(|n| {
            n_layers += n;
            n_layers > MAX_LAYERS
        }) {
            let measured = format!(
                "the network has more than {MAX_LAYERS} layers, of which a block of `repeats` counts as {LAYERS_OF_A_BLOCK}"
            );
            return Err(NodeError::new(at("layers", number), measured));
        }
        if config.inputs.is_empty() {
            return Err(NodeError::new(vec![key("inputs")], "there are no inputs, expected at least one"));
        }
        if config.loss.is_empty() {
            return Err(NodeError::new(vec![key("loss")], "there are no losses, expected at least one"));
        }
        let names = names(config)?;
        let layers = names.iter().enumerate().map(|(number, name)| (name.clone(), Source::Layer(number)));
        let inputs = config.inputs.iter().enumerate().rev();
        let inputs = inputs.map(|(number, input)| (input.name.clone(), Source::Input(number)));
        let by_name = layers.chain(inputs).collect();
        let mut wiring = Wiring { names, by_name, ..Wiring::default() };
        for (number, layer) in config.layers.iter().enumerate() {
            let mut reads = wiring.reads_of(config, number, layer)?;
            wiring.names_its_mask(config, number, &reads)?;
            reads.extend(wiring.states_of(config, number, layer)?);
            wiring.reads.push(reads);
            let (owner, tied) = (wiring.owner_of(config, number)?, wiring.tied(config, number)?);
            wiring.owners.push(owner);
            wiring.tied.push(tied);
        }
        // A layer that reads nothing takes the size of the batch from an input that another layer reads.
        let first = wiring.reads.iter().flatten().find(|source| source.layer().is_none()).copied();
        for (reads, layer) in wiring.reads.iter_mut().zip(&config.layers) {
            if layer.kind.arity() == Arity::Nothing {
                *reads = vec![first.unwrap_or(Source::Input(0))];
            }
        }
        wiring.is_shared = vec![false; config.layers.len()];
        for &number in wiring.owners.iter().chain(&wiring.tied).flatten() {
            wiring.is_shared[number] = true;
        }
        wiring.outputs = wiring.outputs_of(config)?;
        for (at, (name, source)) in wiring.outputs.iter().enumerate() {
            wiring.output_at.insert(name.clone(), at);
            wiring.first_output.entry(*source).or_insert(at);
        }
        for (number, loss) in config.loss.iter().enumerate() {
            let path = [at("loss", number), vec![key(loss.name()), key("output")]].concat();
            let source =
                wiring.judged(config, &format!("loss `{}`", loss.name()), loss.options.output.as_deref(), path)?;
            wiring.losses.push(source);
            let other = wiring.other_of(config, number, loss)?;
            wiring.others.push(other);
        }
        let (weights, mut taken) = (wiring.weights_of_losses(config), HashSet::from(["loss".to_string()]));
        for (number, metric) in config.metrics.iter().enumerate() {
            let name = metric.name();
            if !taken.insert(name.to_string()) {
                let error = NodeError::new(at("metrics", number), format!("two things are reported as `{name}`"));
                return Err(error.with_help("give one of them another name: `name: …`"));
            }
            let path = [at("metrics", number), vec![key(metric.kind_name()), key("output")]].concat();
            let source = wiring.judged(config, &format!("metric `{name}`"), metric.options.output.as_deref(), path)?;
            wiring.metrics.push(source);
            let in_losses = weights.get(&source).map_or(&[][..], Vec::as_slice);
            wiring.metric_weights.push(weights_of(number, metric, in_losses)?);
        }
        let Wiring { reads, losses, others, metrics, outputs, .. } = &wiring;
        let read = reads.iter().flatten().chain(losses).chain(others.iter().flatten()).chain(metrics);
        let mut gives_state = vec![false; config.layers.len()];
        for source in read.chain(outputs.iter().map(|(_, source)| source)) {
            if let Source::State(number, _) = *source {
                gives_state[number] = true;
            }
        }
        wiring.gives_state = gives_state;
        Ok(wiring)
    }

    /// The source of this name.
    fn find(&self, config: &Config, name: &str) -> Option<Source> {
        self.by_name.get(name).copied().or_else(|| {
            let (name, state) = name.rsplit_once('.')?;
            let Source::Layer(number) = *self.by_name.get(name)? else { return None };
            let states = config.layers[number].kind.state_names();
            Some(Source::State(number, states.iter().position(|other| *other == state)?))
        })
    }

    /// The name of a source.
    pub fn name_of<'a>(&'a self, config: &'a Config, source: Source) -> Cow<'a, str> {
        match source {
            Source::Input(number) => config.inputs[number].name.as_str().into(),
            Source::Layer(number) => self.names[number].as_str().into(),
            Source::State(number, state) => {
                format!("{}.{}", self.names[number], config.layers[number].kind.state_names()[state]).into()
            }
        }
    }

    /// The name of what a loss judges: that of an output of the file, or else of its source.
    pub fn judged_name<'a>(&'a self, config: &'a Config, loss: usize) -> Cow<'a, str> {
        let (source, written) = (self.losses[loss], config.loss[loss].options.output.as_deref());
        let named = written.and_then(|name| self.output_at.get(name)).or_else(|| self.first_output.get(&source));
        match named {
            // Without `outputs` there is one, and its name is no choice of the file's.
            Some(&at) if !config.outputs.is_empty() => self.outputs[at].0.as_str().into(),
            _ => self.name_of(config, source),
        }
    }

    fn reads_of(&self, config: &Config, number: usize, layer: &Layer) -> Result<Vec<Source>, NodeError> {
        let (name, kind) = (&self.names[number], layer.kind.name());
        let wrong = |message: String| NodeError::new([at("layers", number), vec![key("inputs")]].concat(), message);
        if let (true, Some(names)) = (layer.inputs.is_empty(), layer.kind.named()) {
            return self.named(config, number, &names);
        }
        if layer.inputs.is_empty() && layer.kind.arity() == Arity::Nothing {
            return Ok(Vec::new());
        }
        if layer.inputs.is_empty() && layer.kind.arity() != Arity::Several {
            return match (number, &config.inputs[..]) {
                (0, [_]) => Ok(vec![Source::Input(0)]),
                (0, inputs) => {
                    let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
                    let message = format!("layer `{name}` is the first, and there are {} inputs", inputs.len());
                    let help = format!("say which it reads: `inputs: {}`, …; there are {}", names[0], names.join(", "));
                    Err(wrong(message).with_help(help))
                }
                _ => Ok(vec![Source::Layer(number - 1)]),
            };
        }
        let (n, expected) = (layer.inputs.len(), layer.kind.arity());
        let (fits, words) = match expected {
            Arity::Nothing => (false, "nothing"),
            Arity::One => (n == 1, "one"),
            Arity::OneOrTwo => (n == 1 || n == 2, "one or two"),
            Arity::UpToThree => ((1..=3).contains(&n), "one to three"),
            Arity::Several => (n >= 2, "at least two"),
            Arity::Named => (Some(n) == layer.kind.named().map(|names| names.len()), "as many as its formula names"),
        };
        if !fits {
            let error = wrong(format!("layer `{name}` ({kind}) reads {n}, expected {words}"));
            return Err(match expected {
                Arity::Several => error.with_help(format!("name them: `{{{kind}: [a, b]}}`")),
                Arity::One | Arity::OneOrTwo | Arity::UpToThree => {
                    error.with_help(self.joined_first(config, layer, expected))
                }
                Arity::Nothing => error.with_help("leave `inputs` out, and name the layer where it is read"),
                Arity::Named => error.with_help("leave `inputs` out, or name them in the formula's order"),
            });
        }
        let source = |read: &String| match self.find(config, read) {
            Some(source) => self.above(config, number, source, wrong),
            None => {
                let error = wrong(format!("layer `{name}` reads `{read}`, which is neither an input nor a layer"));
                Err(error.with_help(self.known_above(config, read, number)))
            }
        };
        layer.inputs.iter().map(source).collect()
    }

    /// The advice for a layer that names more than it reads.
    fn joined_first(&self, config: &Config, layer: &Layer, arity: Arity) -> String {
        let (Some(mask), kind) = (self.mask_among(config, &layer.inputs), layer.kind.name()) else {
            return "join them first, with `concat` or `add`".to_string();
        };
        let parts = match arity {
            Arity::OneOrTwo => "a sequence and a mask",
            Arity::UpToThree => "queries, memory and a mask",
            Arity::Nothing | Arity::One | Arity::Several | Arity::Named => {
                return format!(
                    "`{kind}` reads no mask: leave `{mask}` out, and name it at the layers that read one: `lstm`, `gru`, \
                     `simple_rnn`, `attention`, `transformer_block`, `llama_block`, `global_avg_pool`"
                );
            }
        };
        format!("`{kind}` reads {parts}: keep `{mask}`, and join the others first, with `concat` or `add`")
    }

    /// The mask among these names: a `masking` layer, or an input that is called one.
    fn mask_among<'a>(&self, config: &Config, names: &'a [String]) -> Option<&'a String> {
        names.iter().find(|name| match self.find(config, name) {
            Some(Source::Layer(number)) => matches!(config.layers[number].kind, LayerKind::Masking(_)),
            Some(Source::Input(_)) => name.to_lowercase().contains("mask"),
            Some(Source::State(..)) | None => false,
        })
    }

    /// Refuses a layer that reads the mask before it without naming it.
    fn names_its_mask(&self, config: &Config, number: usize, reads: &[Source]) -> Result<(), NodeError> {
        let (layer, Some(before)) = (&config.layers[number], number.checked_sub(1)) else { return Ok(()) };
        let mask = &self.names[before];
        let is_mask = matches!(config.layers[before].kind, LayerKind::Masking(_));
        let is_named = !layer.inputs.is_empty() || layer.kind.named().is_some_and(|names| names.contains(mask));
        if !is_mask || is_named || !reads.contains(&Source::Layer(before)) {
            return Ok(());
        }
        let masked = self.reads[before].first().map(|source| self.name_of(config, *source)).unwrap_or_default();
        let (message, help) = super::indices::unnamed_mask(&self.names[number], layer.kind.name(), (mask, &masked));
        Err(NodeError::new(at("layers", number), message).with_help(help))
    }

    /// The layers that give a recurrent layer's initial state.
    fn states_of(&self, config: &Config, number: usize, layer: &Layer) -> Result<Vec<Source>, NodeError> {
        let wrong =
            |message: String| NodeError::new([at("layers", number), vec![key("initial_state")]].concat(), message);
        let source = |name: &String| match self.find(config, name) {
            Some(source) => self.above(config, number, source, wrong),
            None => {
                let layer = &self.names[number];
                let error =
                    wrong(format!("layer `{layer}` starts from `{name}`, which is neither an input nor a layer"));
                Err(error.with_help(self.known_above(config, name, number)))
            }
        };
        layer.initial_state.iter().map(source).collect()
    }

    /// The sources of names; `x` is the previous layer, and nothing else may have that name.
    fn named(&self, config: &Config, number: usize, names: &[String]) -> Result<Vec<Source>, NodeError> {
        let wrong = |message: String| NodeError::new(at("layers", number), message);
        let source = |name: &String| match self.find(config, name) {
            Some(source) if name == "x" && number > 0 && source != Source::Layer(number - 1) => {
                let (message, help) = super::arithmetic::two_called_x(&self.names[number - 1]);
                Err(wrong(message).with_help(help))
            }
            Some(source) => self.above(config, number, source, wrong),
            None if name == "x" && number > 0 => Ok(Source::Layer(number - 1)),
            None if name == "x" && config.inputs.len() == 1 => Ok(Source::Input(0)),
            None => {
                let layer = &self.names[number];
                let error = wrong(format!("layer `{layer}` reads `{name}`, which is neither an input nor a layer"));
                Err(error.with_help(self.known_above(config, name, number)))
            }
        };
        names.iter().map(source).collect()
    }

    /// A source that layer `number` reads, which must precede it.
    fn above(
        &self,
        config: &Config,
        number: usize,
        source: Source,
        wrong: impl Fn(String) -> NodeError,
    ) -> Result<Source, NodeError> {
        match source.layer() {
            Some(other) if other >= number => Err(self.not_above(config, number, other, wrong)),
            _ => Ok(source),
        }
    }

    /// The error of a layer that reads itself, or a later one.
    fn not_above(
        &self,
        config: &Config,
        number: usize,
        other: usize,
        wrong: impl Fn(String) -> NodeError,
    ) -> NodeError {
        let names = &self.names;
        match way(config, names, other, number) {
            Some(way) => {
                // From the reader along the sources back to it.
                let way = [vec![number], way].concat();
                let way: Vec<String> = way.into_iter().map(|number| format!("`{}`", names[number])).collect();
                wrong(format!("layers read each other in a cycle: {}", way.join(" reads ")))
                    .with_help("let the first of them read an input, or a layer above it")
            }
            None => wrong(format!("layer `{}` reads `{}`, which stands below it", names[number], names[other]))
                .with_help(format!("move `{}` up: a layer stands after what it reads", names[other])),
        }
    }

    /// The name that was probably meant, or all names.
    pub(super) fn known(&self, config: &Config, name: &str) -> String {
        self.known_above(config, name, self.names.len())
    }

    /// The same for sources before layer `number`: also last states, if a recurrent layer's name precedes a dot.
    fn known_above(&self, config: &Config, name: &str, number: usize) -> String {
        let inputs = config.inputs.iter().map(|input| &input.name);
        let names: Vec<String> = inputs.chain(&self.names[..number]).cloned().collect();
        if let Some((layer, _)) = name.rsplit_once('.')
            && let Some(at) = self.names[..number].iter().position(|other| other == layer)
        {
            let states = config.layers[at].kind.state_names().iter().map(|state| format!("`{layer}.{state}`"));
            let states: Vec<String> = states.collect();
            let kind = config.layers[at].kind.name();
            return match states.is_empty() {
                true => format!("`{layer}` ({kind}) has no states: `lstm`, `gru` and `simple_rnn` have"),
                false => format!("`{layer}` ({kind}) has {}", states.join(", ")),
            };
        }
        let mut labels = config.labels.iter().map(|label| &label.name);
        let is_label = |loss: &Loss| loss.options.labels == name;
        if labels.any(|label| label == name) || config.loss.iter().any(is_label) {
            let help = "it is a label: layers read it where it stands under `inputs`; losses may name inputs, too";
            return help.to_string();
        }
        match nearest(name, &names) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => format!("there are {}", names.join(", ")),
        }
    }

    fn outputs_of(&self, config: &Config) -> Result<Vec<(String, Source)>, NodeError> {
        // Numbers of a regression or of independent answers are not logits of classes.
        let only = if config.loss.iter().any(Loss::is_of_classes) { "logits" } else { "output" };
        if config.outputs.is_empty() {
            return Ok(vec![(only.to_string(), Source::Layer(config.layers.len() - 1))]);
        }
        let mut outputs: Vec<(String, Source)> = Vec::new();
        let mut taken = HashSet::new();
        for output in &config.outputs {
            let path = vec![key("outputs"), key(&output.name)];
            if !taken.insert(&output.name) {
                return Err(NodeError::new(path, format!("there are two outputs `{}`", output.name)));
            }
            let Some(source) = self.find(config, &output.layer) else {
                let message =
                    format!("output `{}` is `{}`, which is neither a layer nor an input", output.name, output.layer);
                return Err(NodeError::new(path, message).with_help(self.known(config, &output.layer)));
            };
            let is_only = config.outputs.len() == 1 && output.name == "logits";
            outputs.push((if is_only { only.to_string() } else { output.name.clone() }, source));
        }
        Ok(outputs)
    }

    /// The source of the output of this name.
    fn output(&self, name: &str) -> Option<Source> {
        Some(self.outputs[*self.output_at.get(name)?].1)
    }

    /// The output that a loss or metric reads: the only one, or the one of this name.
    fn judged(&self, config: &Config, what: &str, output: Option<&str>, path: Vec<Step>) -> Result<Source, NodeError> {
        let Some(name) = output else {
            return match &self.outputs[..] {
                [(_, source)] => Ok(*source),
                several => {
                    let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                    let message = format!("{what} does not say which output it judges: {}", names.join(", "));
                    Err(NodeError::new(path, message).with_help(format!("add `output: {}`", names[0])))
                }
            };
        };
        self.output(name).or_else(|| self.find(config, name)).ok_or_else(|| {
            let message = format!("{what} judges `{name}`, which is neither an output nor a layer");
            let is_label = config.labels.iter().any(|label| label.name == name);
            let outputs: Vec<String> = self.outputs.iter().map(|(name, _)| name.clone()).collect();
            let help = match nearest(name, &outputs) {
                _ if is_label => format!("it is a label: write `labels: {name}`"),
                Some(output) => format!("did you mean `{output}`?"),
                None => self.known(config, name),
            };
            NodeError::new(path, message).with_help(help)
        })
    }

    /// The second layer that a loss reads.
    fn other_of(&self, config: &Config, number: usize, loss: &Loss) -> Result<Option<Source>, NodeError> {
        let path = |end: Step| [at("loss", number), vec![key(loss.name()), end]].concat();
        let mut other = None;
        for (option, reader, is_read, name) in loss.others() {
            match name {
                None if is_read => {
                    let (words, help) = match option {
                        "with" => ("what its vectors match", "write `{matching: , output: users, with: items}`"),
                        _ => (
                            "what transitions between tags score",
                            "write `{variable: [5, 5], name: transitions}`, of five tags, and `transitions: transitions`",
                        ),
                    };
                    let message = format!("{} does not say {words}", loss.name());
                    return Err(NodeError::new(at("loss", number), message).with_help(help));
                }
                None => {}
                Some(_) if !is_read => {
                    let message = format!("{} has no `{option}`", loss.name());
                    let error = NodeError::new(path(Step::KeyItself(option.to_string())), message);
                    return Err(error.with_help(format!("leave `{option}` out: it is for `{reader}`")));
                }
                Some(name) => {
                    let Some(source) = self.output(name).or_else(|| self.find(config, name)) else {
                        let message = format!("`{option}` of {} is `{name}`, which is no layer", loss.name());
                        return Err(NodeError::new(path(key(option)), message).with_help(self.known(config, name)));
                    };
                    other = Some(source);
                }
            }
        }
        Ok(other)
    }

    /// The features with the weights of examples in the losses that judge each source, those that differ from the one
    /// before.
    fn weights_of_losses<'a>(&self, config: &'a Config) -> HashMap<Source, Vec<Option<&'a String>>> {
        let mut weights: HashMap<Source, Vec<Option<&String>>> = HashMap::new();
        for (loss, source) in config.loss.iter().zip(&self.losses) {
            weights.entry(*source).or_default().push(loss.options.example_weights.as_ref());
        }
        weights.values_mut().for_each(Vec::dedup);
        weights
    }

    /// The layer that computes the classes of a label: in what a loss or metric compares with the label, the last layer
    /// with a size of its own.
    pub fn maker_of_classes(&self, config: &Config, label: &str) -> Option<usize> {
        let losses = config.loss.iter().map(|loss| &loss.options.labels).zip(&self.losses);
        let metrics = config.metrics.iter().map(|metric| &metric.options.labels).zip(&self.metrics);
        let (_, source) = losses.chain(metrics).find(|(name, _)| *name == label)?;
        let mut source = *source;
        while let Source::Layer(number) = source {
            match config.layers[number].kind {
                LayerKind::Dense(_)
                | LayerKind::Conv(_)
                | LayerKind::Conv3d(_)
                | LayerKind::ConvTranspose(_)
                | LayerKind::SeparableConv(_) => return Some(number),
                _ => source = *self.reads[number].first()?,
            }
        }
        None
    }

    /// The layer that reads a feature as indices, and bounds them.
    pub fn reader_of(&self, config: &Config, feature: &Feature) -> Option<usize> {
        let reads = |number: &usize| {
            let is_it =
                |source: &Source| matches!(source, Source::Input(at) if config.inputs[*at].name == feature.name);
            config.layers[*number].kind.n_values() == feature.n_values && self.reads[*number].iter().any(is_it)
        };
        (0..config.layers.len()).find(reads)
    }

    /// The inputs and layers that the result depends on.
    fn read(&self, config: &Config) -> [Vec<bool>; 2] {
        let mut is_read = [vec![false; config.inputs.len()], vec![false; config.layers.len()]];
        let mut waiting: Vec<Source> = self.outputs.iter().map(|(_, source)| *source).collect();
        waiting.extend(self.losses.iter().chain(&self.metrics).chain(self.others.iter().flatten()));
        while let Some(source) = waiting.pop() {
            match source {
                Source::Input(number) => is_read[0][number] = true,
                Source::Layer(number) | Source::State(number, _) => {
                    let reads_nothing = config.layers[number].kind.arity() == Arity::Nothing;
                    if !std::mem::replace(&mut is_read[1][number], true) && !reads_nothing {
                        waiting.extend(&self.reads[number]);
                    }
                }
            }
        }
        is_read
    }

    /// Refuses a label that is not described and has the name of another layer than the one that the loss judges.
    fn labels_are_no_layer(&self, config: &Config, number: usize, loss: &Loss) -> Result<(), NodeError> {
        let name = &loss.options.labels;
        let layer = self.by_name.get(name).filter(|source| source.layer().is_some());
        let is_described = || config.labels.iter().any(|feature| feature.name == *name);
        if layer.is_none() || layer == Some(&self.losses[number]) || name == "labels" || is_described() {
            return Ok(());
        }
        let path = [at("loss", number), vec![key(loss.name()), key("labels")]].concat();
        let message =
            format!("labels of `{}` are `{name}`, which is a layer, expected an array of the data", loss.name());
        Err(NodeError::new(path, message).with_help(format!(
            "name the input that is to be computed, of the output's dims; or compute the difference of two layers in an \
             `expression`, and write the loss `value` of it; or describe the array: `labels: {{{name}: […]}}`"
        )))
    }

    /// Refuses layers and inputs without effect: they are probably mistakes.
    fn everything_is_read(&self, config: &Config) -> Result<(), NodeError> {
        let is_read = self.read(config);
        if let Some(number) = is_read[1].iter().position(|is_read| !is_read) {
            let (name, kind) = (&self.names[number], config.layers[number].kind.name());
            let message = format!("unused layer `{name}` ({kind})");
            let help = "name it in another layer's `inputs` or in `outputs`, or leave it out";
            return Err(NodeError::new(at("layers", number), message).with_help(help));
        }
        for (number, loss) in config.loss.iter().enumerate() {
            if loss.options.label_smoothing.is_some_and(|smoothing| smoothing > 0.0) && !loss.is_smoothed() {
                let message = format!("{} has no label smoothing", loss.name());
                let help = "leave `label_smoothing` out: it is for cross entropies";
                return Err(NodeError::new(at("loss", number), message).with_help(help));
            }
        }
        for (number, loss) in config.loss.iter().enumerate() {
            self.labels_are_no_layer(config, number, loss)?;
            let mut lengths = loss.lengths().into_iter();
            if let Some((option, _)) = lengths.find(|(option, name)| name.is_some() && !loss.has_lengths(option)) {
                let path = [at("loss", number), vec![key(loss.name()), Step::KeyItself(option.to_string())]];
                let words = if loss.has_lengths("label_lengths") { "lengths but those of labels" } else { "lengths" };
                let error = NodeError::new(path.concat(), format!("{} has no {words}", loss.name()));
                return Err(error.with_help(format!("leave `{option}` out: it is for `ctc`")));
            }
            if loss.options.class_weights.is_some() && !loss.weighs_classes() {
                let path = [at("loss", number), vec![key(loss.name()), Step::KeyItself("class_weights".to_string())]];
                let error = NodeError::new(path.concat(), format!("{} has no classes to weigh", loss.name()));
                return Err(error.with_help("leave `class_weights` out: it is for cross entropies of classes"));
            }
        }
        let targets = config.loss.iter().map(|loss| &loss.options.labels);
        let targets = targets.chain(config.weights());
        let targets = targets.chain(config.loss.iter().flat_map(Loss::lengths).filter_map(|(_, name)| name));
        let targets = targets.chain(config.metrics.iter().map(|m| &m.options.labels));
        let targets: Vec<&String> = targets.filter(|name| constant(config, name).is_none()).collect();
        let is_target: HashSet<&String> = targets.iter().copied().collect();
        if let Some(error) = config.inputs.iter().find_map(of_other_numbers) {
            return Err(error);
        }
        for label in &config.labels {
            if label.spec.random.is_some() {
                let path = vec![key("labels"), key(&label.name), Step::KeyItself("random".to_string())];
                let message = format!("label `{}` is drawn, which nothing can learn", label.name);
                return Err(NodeError::new(path, message).with_help("leave `random` out: it is for `inputs`"));
            }
        }
        for (number, input) in config.inputs.iter().enumerate() {
            if !is_read[0][number] && !is_target.contains(&input.name) {
                let path = vec![key("inputs"), Step::KeyItself(input.name.clone())];
                let message = format!("no layer reads input `{}`", input.name);
                let help = format!("name it in a layer's `inputs: {}`, or leave it out", input.name);
                return Err(NodeError::new(path, message).with_help(help));
            }
        }
        for label in &config.labels {
            if !is_target.contains(&label.name) {
                let path = vec![key("labels"), Step::KeyItself(label.name.clone())];
                let message = format!("no loss and no metric reads label `{}`", label.name);
                // If labels are described, a label that is read but not described may be a misspelt one.
                let is_described = |name: &String| config.labels.iter().any(|label| label.name == *name);
                let is_input = |name: &String| config.inputs.iter().any(|input| input.name == *name);
                let is_said = |name: &String| name != "labels"; // which is the default
                let other = targets.iter().find(|name| is_said(name) && !is_described(name) && !is_input(name));
                let help = match other {
                    Some(other) => format!("`{other}` is read and is not among `labels`: give both one name"),
                    None => format!("add `labels: {}` to one", label.name),
                };
                return Err(NodeError::new(path, message).with_help(help));
            }
        }
        Ok(())
    }
}

/// The feature with the weights of examples in a metric: its own, or that of the losses on the same output.
fn weights_of(number: usize, metric: &Metric, in_losses: &[Option<&String>]) -> Result<Option<String>, NodeError> {
    match &metric.options.example_weights {
        MetricWeights::Feature(name) => return Ok(Some(name.clone())),
        MetricWeights::Alike => return Ok(None),
        MetricWeights::AsInLoss => {}
    }
    match in_losses {
        [] => Ok(None),
        [only] => Ok(only.cloned()),
        [..] => {
            let name = metric.name();
            let message = format!("metric `{name}` does not say what examples weigh: losses of its output differ");
            let known = in_losses.iter().flatten().map(|name| format!("`example_weights: {name}`"));
            let known: Vec<String> = known.chain(["`example_weights: null` (all alike)".to_string()]).collect();
            Err(NodeError::new(at("metrics", number), message).with_help(format!("add {}", known.join(" or "))))
        }
    }
}

/// The error of an input whose options are for numbers of another kind.
fn of_other_numbers(input: &Input) -> Option<NodeError> {
    let is_whole = input.spec.dtype == InputDType::Int32;
    let error = |option: &str, message: String| {
        let path = vec![key("inputs"), key(&input.name), Step::KeyItself(option.to_string())];
        NodeError::new(path, message)
    };
    if input.spec.random.is_some() && (is_whole || input.spec.below.is_some()) {
        let message = format!("input `{}` is whole numbers, and what is drawn are floats", input.name);
        return Some(error("random", message).with_help("leave `dtype` and `below` out"));
    }
    if input.spec.below.is_some() && !is_whole {
        let message = format!("input `{}` is floats, and `below` bounds whole numbers", input.name);
        return Some(error("below", message).with_help("write `dtype: int32` beside it, or leave it out"));
    }
    None
}

/// The path by which `from` depends on `to`, both included, if it does.
fn way(config: &Config, names: &[String], from: usize, to: usize) -> Option<Vec<usize>> {
    let mut visited = vec![false; names.len()];
    let mut paths = vec![vec![from]];
    while let Some(path) = paths.pop() {
        let last = path[path.len() - 1];
        if last == to {
            return Some(path);
        }
        if std::mem::replace(&mut visited[last], true) {
            continue;
        }
        let layer = &config.layers[last];
        let formula = if layer.inputs.is_empty() { layer.kind.named() } else { None };
        let reads = formula.as_ref().unwrap_or(&layer.inputs);
        let before = (reads.is_empty() && last > 0).then(|| last - 1);
        let named = reads.iter().chain(&layer.initial_state).filter_map(|name| {
            let is_it =
                |other: &&String| *other == name || name.rsplit_once('.').is_some_and(|(layer, _)| layer == *other);
            names.iter().position(|other| is_it(&other))
        });
        paths.extend(named.chain(before).map(|next| [path.as_slice(), &[next]].concat()));
    }
    None
}

/// The layers' names: explicit ones, or the kind's with a number from the second on, as Keras counts.
fn names(config: &Config) -> Result<Vec<String>, NodeError> {
    let mut taken: BTreeSet<String> = config.inputs.iter().map(|input| input.name.clone()).collect();
    for (number, layer) in config.layers.iter().enumerate() {
        let Some(name) = &layer.name else { continue };
        if !taken.insert(name.clone()) {
            let path = [at("layers", number), vec![key("name")]].concat();
            let message = format!("another layer or input is called `{name}`, too");
            return Err(NodeError::new(path, message).with_help("give one of them another name"));
        }
    }
    let mut n_of_kind = BTreeMap::<&str, usize>::new();
    let name = |layer: &Layer| {
        if let Some(name) = &layer.name {
            return name.clone();
        }
        let kind = layer.kind.name();
        loop {
            let n = n_of_kind.entry(kind).or_default();
            let name = if *n == 0 { kind.to_string() } else { format!("{kind}_{n}") };
            *n += 1;
            if taken.insert(name.clone()) {
                return name;
            }
        }
    };
    Ok(config.layers.iter().map(name).collect())
}
