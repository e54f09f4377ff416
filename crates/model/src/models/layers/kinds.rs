//! The kinds of layer, and a layer as a configuration has it.
//!
//! To add a kind, write its options with their `build` in a file beside this one, and a line in the table below.

use super::choice::{Choice, Names as ChoiceNames, twice};
use super::constraint::{Constraints, Iterations};
use super::keras_options::{plain, without_axes};
use super::layer_options::{Arity, LayerOptions};
use super::regularizer::Regularizers;
use super::{
    arithmetic, block, direct, elementwise, fourier, gradient, indices, keras_options, llama, margins, merge, numbers,
    order, reductions, shape,
};
use crate::document::{self, Key, Mark, Node, ReadError, Value};
use crate::graph::{Scope, Tensor};
use crate::nn;
use serde::de::{Deserializer, value::StrDeserializer};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident($Options:ty) = $name:literal, $keras:literal;)*) => {
        /// A layer's kind, and its options.
        #[derive(Clone, Debug, PartialEq)]
        pub enum LayerKind {
            $($(#[$doc])* $Kind($Options),)*
        }

        /// Names of kinds, with their Keras names.
        const NAMES: &[(&str, &str)] = &[$(($name, $keras)),*];

        impl LayerKind {
            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(LayerKind::$Kind(_) => $name,)*
                }
            }

            /// The number of tensors that it reads.
            pub fn arity(&self) -> Arity {
                match self {
                    $(LayerKind::$Kind(_) => <$Options>::ARITY,)*
                }
            }

            /// The approximate number of plain layers in it.
            pub(super) fn n_layers(&self) -> i64 {
                match self {
                    $(LayerKind::$Kind(options) => options.n_layers(),)*
                }
            }

            /// For a layer that reads indices: their exclusive upper bound.
            pub(super) fn n_values(&self) -> Option<i64> {
                match self {
                    $(LayerKind::$Kind(options) => options.n_values(),)*
                }
            }

            /// Builds it under `name`.
            pub(super) fn build(&self, s: &Scope, name: &str, inputs: &[&Tensor]) -> Tensor {
                match self {
                    $(LayerKind::$Kind(options) => options.build(s, name, inputs),)*
                }
            }

            fn read(name: &str, choice: Choice<'_>) -> Result<LayerKind, ReadError> {
                match name {
                    $($name => Ok(LayerKind::$Kind(choice.options(&COMMON)?)),)*
                    _ => {
                        let error = choice.unknown(&[$($name),*], None, |_| String::new());
                        Err(match keras_options::elsewhere(name) {
                            Some(help) => error.with_help(help),
                            None => match activation_named(name) {
                                Some(function) => error.with_help(format!("write `activation: {function}`")),
                                None => error,
                            },
                        })
                    }
                }
            }

            /// The keys of a kind's options.
            fn keys_of(name: &str) -> Vec<&'static str> {
                match name {
                    $($name => document::kind::keys_of::<$Options>(),)*
                    _ => Vec::new(),
                }
            }

            /// The number of tensors that a kind reads.
            pub(super) fn arity_of(name: &str) -> Arity {
                match name {
                    $($name => <$Options>::ARITY,)*
                    _ => Arity::One,
                }
            }

            fn serialize_entry<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                match self {
                    $(LayerKind::$Kind(options) => map.serialize_entry($name, options),)*
                }
            }
        }
    };
}

kinds! {
    /// `x · kernel + bias`.
    Dense(nn::Dense) = "dense", "Dense";
    /// Convolution over height and width.
    Conv(nn::Conv2d) = "conv", "Conv2D";
    /// Convolution along a sequence.
    Conv1d(nn::Conv1d) = "conv1d", "Conv1D";
    /// Convolution over depth, height and width.
    Conv3d(nn::Conv3d) = "conv3d", "Conv3D";
    /// The transpose of a convolution of a sequence, an image or a volume.
    ConvTranspose(nn::ConvTranspose) = "conv_transpose", "Conv2DTranspose";
    /// A depthwise convolution followed by a 1×1 convolution.
    SeparableConv(nn::SeparableConv) = "separable_conv", "SeparableConv2D";
    /// Convolution in which every channel has its own kernels.
    DepthwiseConv(nn::DepthwiseConv2d) = "depthwise_conv", "DepthwiseConv2D";
    /// Batch normalisation.
    BatchNorm(nn::BatchNorm) = "batch_norm", "BatchNormalization";
    /// Normalisation of groups of channels.
    GroupNorm(nn::GroupNorm) = "group_norm", "GroupNormalization";
    /// Normalisation of each channel of an example.
    InstanceNorm(nn::InstanceNorm) = "instance_norm", "InstanceNormalization";
    /// Layer normalisation.
    LayerNorm(nn::LayerNorm) = "layer_norm", "LayerNormalization";
    /// Normalisation by the root of the mean square.
    RmsNorm(nn::RmsNorm) = "rms_norm", "RMSNormalization";
    /// The maximum of each window.
    MaxPool(direct::MaxPool) = "max_pool", "MaxPooling2D";
    /// The mean of each window.
    AvgPool(direct::AvgPool) = "avg_pool", "AveragePooling2D";
    /// The maximum over height and width.
    GlobalMaxPool(direct::GlobalMaxPool) = "global_max_pool", "GlobalMaxPooling2D";
    /// The mean over height and width.
    GlobalAvgPool(direct::GlobalAvgPool) = "global_avg_pool", "GlobalAveragePooling2D";
    /// Zeroes elements in training.
    Dropout(direct::Dropout) = "dropout", "Dropout";
    /// Zeroes whole channels in training.
    SpatialDropout(direct::SpatialDropout) = "spatial_dropout", "SpatialDropout2D";
    /// Drops whole examples in training.
    StochasticDepth(direct::StochasticDepth) = "stochastic_depth", "StochasticDepth";
    /// Channels weighted by a function of the whole image.
    SqueezeExcite(nn::SqueezeExcite) = "squeeze_excite", "SqueezeAndExcite2D";
    /// Inverted bottlenecks.
    MbConv(block::MbConv) = "mb_conv", "MBConvBlock";
    /// A formula of named layers.
    Expression(arithmetic::Expression) = "expression", "Expression";
    /// An elementwise function.
    Activation(elementwise::Activation) = "activation", "Activation";
    /// A rectifier with a slope below 0.
    LeakyRelu(elementwise::LeakyRelu) = "leaky_relu", "LeakyReLU";
    /// A rectifier whose slope below 0 is learnt.
    Prelu(nn::Prelu) = "prelu", "PReLU";
    /// Softmax over axes.
    Softmax(reductions::Softmax) = "softmax", "Softmax";
    /// Sums, means and the like over axes.
    Reduce(reductions::Reduce) = "reduce", "Reduce";
    /// Running sums along an axis.
    Cumsum(order::Cumsum) = "cumsum", "Cumsum";
    /// Sorts along an axis.
    Sort(order::Sort) = "sort", "Sort";
    /// The largest elements of the last axis.
    TopK(order::TopKOfLayer) = "top_k", "TopK";
    /// The place of the largest element.
    ArgMax(order::ArgMax) = "arg_max", "ArgMax";
    /// The place of the smallest element.
    ArgMin(order::ArgMin) = "arg_min", "ArgMin";
    /// The discrete Fourier transform.
    Fft(fourier::Fft) = "fft", "FFT";
    /// Its inverse.
    Ifft(fourier::Ifft) = "ifft", "IFFT";
    /// The discrete Fourier transform of real numbers.
    Rfft(fourier::Rfft) = "rfft", "RFFT";
    /// Its inverse.
    Irfft(fourier::Irfft) = "irfft", "IRFFT";
    /// The best sequence of tags.
    Viterbi(order::Viterbi) = "viterbi", "CRFDecode";
    /// The gradient of a layer with respect to another.
    Gradient(gradient::Gradient) = "gradient", "Gradient";
    /// Normalises vectors to length 1.
    UnitNorm(reductions::UnitNorm) = "unit_norm", "UnitNormalization";
    /// The dot product of two inputs along an axis.
    Dot(reductions::Dot) = "dot", "Dot";
    /// The cosine of two inputs along an axis.
    Cosine(reductions::Cosine) = "cosine", "CosineSimilarity";
    /// Adds noise in training.
    GaussianNoise(elementwise::GaussianNoise) = "gaussian_noise", "GaussianNoise";
    /// Multiplies by noise in training.
    GaussianDropout(direct::GaussianDropout) = "gaussian_dropout", "GaussianDropout";
    /// Dropout that keeps mean and variance.
    AlphaDropout(direct::AlphaDropout) = "alpha_dropout", "AlphaDropout";
    /// Rows by index.
    Gather(indices::Gather) = "gather", "Gather";
    /// Classes as one-hot vectors.
    OneHot(indices::OneHot) = "one_hot", "OneHot";
    /// Converts to another dtype.
    Cast(indices::Cast) = "cast", "Cast";
    /// Which steps are not padding.
    Masking(indices::Masking) = "masking", "Masking";
    /// `x · scale + offset`.
    Rescaling(elementwise::Rescaling) = "rescaling", "Rescaling";
    /// Rows of a table by index.
    Embedding(nn::Embedding) = "embedding", "Embedding";
    /// Adds learned positions.
    PositionEmbedding(nn::PositionEmbedding) = "position_embedding", "PositionEmbedding";
    /// A learned position before the others.
    ClassToken(nn::ClassToken) = "class_token", "ClassToken";
    /// Learned numbers.
    Variable(nn::FreeVariable) = "variable", "Variable";
    /// Numbers that the file says.
    Constant(numbers::Constant) = "constant", "Constant";
    /// Long short-term memory.
    Lstm(nn::Lstm) = "lstm", "LSTM";
    /// Gated recurrent unit.
    Gru(nn::Gru) = "gru", "GRU";
    /// A recurrent layer without gates.
    SimpleRnn(nn::SimpleRnn) = "simple_rnn", "SimpleRNN";
    /// Long short-term memory of images.
    ConvLstm(nn::ConvLstm) = "conv_lstm", "ConvLSTM2D";
    /// Attention over several heads.
    Attention(nn::Attention) = "attention", "MultiHeadAttention";
    /// Attention and a feed-forward network.
    TransformerBlock(block::TransformerBlock) = "transformer_block", "TransformerEncoder";
    /// Attention with rotary positions and a gated feed-forward network.
    LlamaBlock(llama::LlamaBlock) = "llama_block", "LlamaTransformerDecoder";
    /// Joins all axes but the batch.
    Flatten(shape::Flatten) = "flatten", "Flatten";
    /// Reshapes each example.
    Reshape(shape::Reshape) = "reshape", "Reshape";
    /// Repeats an example.
    RepeatVector(shape::RepeatVector) = "repeat_vector", "RepeatVector";
    /// Permutes the axes of an example.
    Permute(shape::Permute) = "permute", "Permute";
    /// Takes one position of an axis.
    Take(shape::Take) = "take", "Take";
    /// Takes a range of positions of an axis.
    Slice(shape::Slice) = "slice", "Slice";
    /// Pads images with zeros.
    ZeroPadding(margins::ZeroPadding) = "zero_padding", "ZeroPadding2D";
    /// Crops the edges of images.
    Crop(margins::Crop) = "crop", "Cropping2D";
    /// Repeats every pixel.
    Upsample(shape::Upsample) = "upsample", "UpSampling2D";
    /// Concatenates several inputs.
    Concat(merge::Concat) = "concat", "Concatenate";
    /// The sum of several inputs.
    Add(merge::Add) = "add", "Add";
    /// The first input minus the others.
    Subtract(merge::Subtract) = "subtract", "Subtract";
    /// The product of several inputs.
    Multiply(merge::Multiply) = "multiply", "Multiply";
    /// The mean of several inputs.
    Average(merge::Average) = "average", "Average";
    /// The elementwise maximum of several inputs.
    Maximum(merge::Maximum) = "maximum", "Maximum";
    /// The elementwise minimum of several inputs.
    Minimum(merge::Minimum) = "minimum", "Minimum";
}

/// Keys that every layer may have in addition to its options.
const COMMON: [&str; 5] = ["name", "inputs", "dtype", "share", "trainable"];
/// Further keys that some layers take.
const SOME: [&str; 3] = ["tied_to", "initial_state", SPECTRAL_NORM];
/// The key of kernels that are read divided by their spectral norm.
const SPECTRAL_NORM: &str = "spectral_norm";
/// The kinds whose kernel may be.
const WITH_SPECTRAL_NORM: [&str; 5] = ["dense", "conv", "conv1d", "conv3d", "conv_transpose"];

fn is_extra(key: &str) -> bool {
    SOME.contains(&key) || Regularizers::is_key(key) || Constraints::is_key(key)
}

/// A layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Its name, the prefix of its variables' names; default its kind's, with `_1`, `_2`, … from the second on.
    pub name: Option<String>,
    /// The inputs and layers that it reads; if empty, the previous layer.
    pub inputs: Vec<String>,
    /// The dtype that it computes in; `None` is the network's.
    pub dtype: Option<LayerDType>,
    /// The layer of the same kind and options whose variables it uses: it is applied again.
    pub share: Option<String>,
    /// For a recurrent layer: the layers or inputs that give its initial state.
    pub initial_state: Vec<String>,
    /// For a dense layer: the layer whose table or kernel, transposed, is its kernel.
    pub tied_to: Option<String>,
    /// Penalties on its variables, or on its output.
    pub regularizers: Regularizers,
    /// The sets that its variables are projected to after each update.
    pub constraints: Constraints,
    /// For a layer with a kernel that is read divided by its spectral norm: the iterations of a training step.
    pub spectral_norm: Option<Iterations>,
    /// Whether its variables train; if not, a batch norm in it reads its running statistics, as in Keras.
    pub trainable: bool,
    /// Its kind and options.
    pub kind: LayerKind,
}

/// The dtype that a layer computes in, independent of the network's: as with Keras' `dtype`, it applies to its
/// variables, inputs and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerDType {
    /// f32.
    #[serde(alias = "f32")]
    Float32,
}

impl From<LayerKind> for Layer {
    fn from(kind: LayerKind) -> Layer {
        let regularizers = Regularizers::default();
        Layer {
            name: None,
            inputs: Vec::new(),
            dtype: None,
            share: None,
            initial_state: Vec::new(),
            tied_to: None,
            regularizers,
            constraints: Constraints::default(),
            spectral_norm: None,
            trainable: true,
            kind,
        }
    }
}

/// A name, or several.
pub(super) struct Names(pub Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        Node::read(deserializer, |node| match &node.value {
            Value::Text(name) => Ok(Names(vec![name.clone()])),
            Value::List(_) => Vec::<String>::deserialize(node).map(Names),
            _ => Err(node.wrong("a name, or a list of names")),
        })
    }
}

impl LayerKind {
    /// The activation at the end of the layer's function, if it is one of [`nn::Activation`].
    pub(super) fn activation(&self) -> Option<nn::Activation> {
        match self {
            LayerKind::Dense(options) => Some(options.activation),
            LayerKind::Conv(options) => Some(options.activation),
            LayerKind::Conv1d(options) => Some(options.activation),
            LayerKind::Conv3d(options) => Some(options.activation),
            LayerKind::ConvTranspose(options) => Some(options.activation),
            LayerKind::SeparableConv(options) => Some(options.activation),
            LayerKind::Activation(options) => Some(options.activation),
            LayerKind::Softmax(options) if options.is_over_last() => Some(nn::Activation::Softmax),
            _ => None,
        }
    }

    /// The kind with the name `written`, ours or Keras'.
    pub(super) fn known(written: &str) -> Option<&'static str> {
        let canonical = LayerKind::canonical(written);
        NAMES.iter().find(|(ours, _)| *ours == canonical).map(|(ours, _)| *ours)
    }

    /// Whether its main option is the list of its inputs.
    pub(super) fn is_several(written: &str) -> bool {
        LayerKind::arity_of(LayerKind::canonical(written)) == Arity::Several
    }

    /// The names of the layers that it reads.
    pub(super) fn named(&self) -> Option<Vec<String>> {
        match self {
            LayerKind::Expression(expression) => Some(expression.names()),
            _ => None,
        }
    }

    /// Builds a recurrent layer from the initial `states`; returns its output and last states. Other layers have none.
    pub(super) fn build_from(
        &self,
        s: &Scope,
        name: &str,
        inputs: &[&Tensor],
        states: &[&Tensor],
    ) -> (Tensor, Vec<Tensor>) {
        let mask = inputs.get(1).copied();
        match self {
            LayerKind::Lstm(options) => nn::lstm_with_states(s, inputs[0], mask, states, name, options),
            LayerKind::Gru(options) => nn::gru_with_states(s, inputs[0], mask, states, name, options),
            LayerKind::SimpleRnn(options) => nn::simple_rnn_with_states(s, inputs[0], mask, states, name, options),
            _ => (self.build(s, name, inputs), Vec::new()),
        }
    }

    /// The places of the elements that it returns, for a layer that has them as its state `indices`.
    pub(super) fn indices(&self, s: &Scope, name: &str, x: &Tensor) -> Option<Tensor> {
        match self {
            LayerKind::TopK(options) => Some(s.layer(name, |_| nn::top_k_indices(x, options.k))),
            LayerKind::Sort(options) => Some(s.layer(name, |_| options.indices(x))),
            _ => None,
        }
    }

    /// The names of its last states, in the order of Keras' `return_state`.
    pub(super) fn state_names(&self) -> &'static [&'static str] {
        match self {
            LayerKind::Lstm(options) if options.bidirectional => {
                &["forward_h", "forward_c", "backward_h", "backward_c"]
            }
            LayerKind::Lstm(_) => &["h", "c"],
            LayerKind::Gru(nn::Gru { bidirectional: true, .. })
            | LayerKind::SimpleRnn(nn::SimpleRnn { bidirectional: true, .. }) => &["forward_h", "backward_h"],
            LayerKind::Gru(_) | LayerKind::SimpleRnn(_) => &["h"],
            LayerKind::TopK(_) | LayerKind::Sort(_) => &["indices"],
            _ => &[],
        }
    }

    /// The name that `written` means: Keras' names are accepted, case and underscores do not matter, nor does a number
    /// of axes where only one kind has the name (`MaxPooling1D`).
    fn canonical(written: &str) -> &str {
        let find = |form: fn(&str) -> String| {
            let written = form(written);
            let is_it = |name: &str| form(name) == written;
            let mut names = NAMES.iter().chain(ALIASES);
            names.find(|(ours, keras)| is_it(ours) || is_it(keras)).map(|(ours, _)| *ours)
        };
        let any = || find(without_axes).filter(|_| keras_options::elsewhere(written).is_none());
        find(plain).or_else(any).unwrap_or(written)
    }
}

/// Further names.
const ALIASES: &[(&str, &str)] = &[
    ("zero_padding", "zero_pad"),
    ("variable", "add_weight"),
    ("variable", "Parameter"),
    ("conv1d", "Convolution1D"),
    ("conv", "Convolution2D"),
    ("conv3d", "Convolution3D"),
    ("conv_transpose", "Convolution2DTranspose"),
    ("separable_conv", "SeparableConvolution2D"),
];

/// Decides which key of a layer is its kind.
const KINDS: ChoiceNames<'static> = ChoiceNames {
    common: &COMMON,
    is_known: &|name| LayerKind::known(name).is_some() || activation_named(name).is_some(),
    has_option: &|name, key| is_extra(key) || LayerKind::keys_of(LayerKind::canonical(name)).contains(&key),
};

/// A layer's kind as written, its key, its main option and the others. `parameters` are those of a block with that
/// name.
pub(super) type Parts = (String, Key, Option<Node>, Vec<(Key, Node)>);

/// See [`Parts`].
///
/// # Errors
/// A node that is not a layer.
pub(super) fn parts(node: &Node, parameters: &dyn Fn(&str) -> Option<Vec<String>>) -> Result<Parts, ReadError> {
    let function = |name: &str, mark: Mark| Some(text(activation_named(name)?, mark));
    if let Value::Text(name) = &node.value
        && parameters(name).is_none()
        && let Some(function) = function(name, node.mark)
    {
        let key = Key::new("activation", node.mark);
        return Ok(("activation".to_string(), key, Some(function), Vec::new()));
    }
    let common = [&COMMON[..], &["when"]].concat();
    let names = ChoiceNames {
        common: &common,
        is_known: &|name| parameters(name).is_some() || (KINDS.is_known)(name),
        has_option: &|name, key| match parameters(name) {
            Some(parameters) => key == "repeats" || parameters.iter().any(|name| name == key),
            None => (KINDS.has_option)(name, key),
        },
    };
    let choice = Choice::read(node, &names, EXAMPLE)?;
    let options = choice.entries().map(|(key, node)| (key.clone(), node.clone())).collect();
    let is_kind = LayerKind::known(choice.name).is_some() || parameters(choice.name).is_some();
    if !is_kind
        && choice.main.is_none()
        && let Some(function) = function(choice.name, choice.mark)
    {
        return Ok(("activation".to_string(), Key::new("activation", choice.mark), Some(function), options));
    }
    let key = Key::new(choice.name, choice.mark);
    Ok((choice.name.to_string(), key, choice.main.cloned(), options))
}

/// A name, as a node.
pub(super) fn text(text: &str, mark: Mark) -> Node {
    Node::scalar(Value::Text(text.to_string()), text, mark)
}

const EXAMPLE: &str = "a layer, such as `flatten` or `{dense: 10}`";

impl Layer {
    fn read(node: &Node) -> Result<Layer, ReadError> {
        // `relu` is a layer of its own, like Keras' `ReLU()`.
        if let Value::Text(name) = &node.value
            && let Some(function) = activation_named(name)
        {
            let activation = nn::Activation::deserialize(StrDeserializer::<ReadError>::new(function))?;
            return Ok(Layer::from(LayerKind::Activation(elementwise::Activation { activation })));
        }
        let mut choice = Choice::read(node, &KINDS, EXAMPLE)?;
        // `{relu: , name: r}`.
        let activation = Some(choice.name).filter(|name| choice.main.is_none() && LayerKind::known(name).is_none());
        let activation = activation.and_then(activation_named);
        let canonical = LayerKind::canonical(choice.name);
        let name = choice.take::<String>("name")?;
        let dtype = choice.take::<LayerDType>("dtype")?;
        let share = choice.take::<String>("share")?;
        let trainable = choice.take::<bool>("trainable")?.unwrap_or(true);
        let tied_to = if canonical == "dense" { choice.take::<String>("tied_to")? } else { None };
        let is_recurrent = matches!(canonical, "lstm" | "gru" | "simple_rnn");
        let initial_state = if is_recurrent { choice.take::<Names>("initial_state")? } else { None };
        let initial_state = initial_state.map(|Names(names)| names).unwrap_or_default();
        let regularizers = Regularizers::take(&mut choice)?;
        let constraints = Constraints::take(&mut choice)?;
        let spectral_norm = match WITH_SPECTRAL_NORM.contains(&canonical) {
            true => spectral_norm(&mut choice, tied_to.is_some())?,
            false => None,
        };
        let place_of_inputs = choice.place_of("inputs");
        let mut inputs = choice.take::<Names>("inputs")?.map(|Names(names)| names);
        if LayerKind::arity_of(canonical) == Arity::Several
            && let Some(main) = choice.main.take()
        {
            if let Some(mark) = place_of_inputs {
                return Err(twice("inputs", mark));
            }
            let Names(names) = Names::deserialize(main)?;
            inputs = Some(names);
        }
        let inputs = inputs.unwrap_or_default();
        reads_its_mask(&choice, canonical, inputs.len().max(1))?;
        let function = (canonical == "expression").then(|| layer_in_place_of_function(&choice)).flatten();
        let meaning = meaning_of_unknown(&choice, activation.unwrap_or(canonical)).map(str::to_string).or(function);
        let explained = |error: ReadError| match meaning {
            Some(help) => error.with_help(help),
            None => error,
        };
        let kind = match activation {
            Some(activation) => {
                let activation = nn::Activation::deserialize(StrDeserializer::<ReadError>::new(activation))?;
                let shape::Flatten {} = choice.options(&COMMON).map_err(explained)?;
                LayerKind::Activation(elementwise::Activation { activation })
            }
            None => LayerKind::read(canonical, choice).map_err(explained)?,
        };
        Ok(Layer {
            name,
            inputs,
            dtype,
            share,
            initial_state,
            tied_to,
            regularizers,
            constraints,
            spectral_norm,
            trainable,
            kind,
        })
    }
}

/// Takes `spectral_norm`: the iterations of a step, if there are any.
fn spectral_norm(choice: &mut Choice<'_>, is_tied: bool) -> Result<Option<Iterations>, ReadError> {
    let place = choice.place_of(SPECTRAL_NORM);
    let iterations = choice.take::<Iterations>(SPECTRAL_NORM)?.filter(|iterations| iterations.0 > 0);
    match (iterations, place) {
        (Some(_), Some(mark)) if is_tied => {
            let error =
                ReadError::new("`spectral_norm` of a layer without a kernel: `tied_to` names another's").or_at(mark);
            Err(error.with_help("leave one of them out"))
        }
        _ => Ok(iterations),
    }
}

impl Layer {
    /// The place, in the `node` it was read from, of its number of features or of indices: its main option.
    pub(super) fn place_of_size(&self, node: &Node) -> Mark {
        let size = match &self.kind {
            LayerKind::Dense(_) => "units",
            LayerKind::Embedding(_) => "input_dim",
            LayerKind::Conv(_) | LayerKind::Conv1d(_) | LayerKind::Conv3d(_) => "filters",
            LayerKind::ConvTranspose(_) | LayerKind::SeparableConv(_) => "filters",
            LayerKind::OneHot(_) => "depth",
            LayerKind::Lstm(_) | LayerKind::Gru(_) | LayerKind::SimpleRnn(_) => "units",
            _ => return node.mark,
        };
        let choice = Choice::read(node, &KINDS, "").ok();
        let main = choice.as_ref().and_then(|choice| choice.main).map(|main| main.mark);
        main.or_else(|| choice.and_then(|choice| choice.value_of(size)).map(|node| node.mark)).unwrap_or(node.mark)
    }
}

impl<'de> Deserialize<'de> for Layer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Layer, D::Error> {
        Node::read(deserializer, Layer::read)
    }
}

impl Serialize for Layer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.kind.serialize_entry(&mut map)?;
        if let Some(name) = &self.name {
            map.serialize_entry("name", name)?;
        }
        if !self.inputs.is_empty() {
            map.serialize_entry("inputs", &self.inputs)?;
        }
        if let Some(dtype) = &self.dtype {
            map.serialize_entry("dtype", dtype)?;
        }
        if let Some(share) = &self.share {
            map.serialize_entry("share", share)?;
        }
        if !self.initial_state.is_empty() {
            map.serialize_entry("initial_state", &self.initial_state)?;
        }
        if let Some(tied_to) = &self.tied_to {
            map.serialize_entry("tied_to", tied_to)?;
        }
        self.regularizers.serialize_entries(&mut map)?;
        self.constraints.serialize_entries(&mut map)?;
        if let Some(iterations) = &self.spectral_norm {
            map.serialize_entry(SPECTRAL_NORM, iterations)?;
        }
        if !self.trainable {
            map.serialize_entry("trainable", &false)?;
        }
        map.end()
    }
}

/// The activation that a layer by its own name computes, ours or by Keras' class name: case and underscores do not
/// matter.
fn activation_named(written: &str) -> Option<&'static str> {
    let names = document::kind::names_of::<nn::Activation>();
    let written = plain(written);
    names.into_iter().find(|name| plain(name) == written)
}

/// The equivalent of the first option that a kind does not have, which reading it refuses, if Keras has it.
fn meaning_of_unknown(choice: &Choice<'_>, kind: &str) -> Option<&'static str> {
    let keys = LayerKind::keys_of(kind);
    let is_kind = LayerKind::known(kind).is_some() || activation_named(kind).is_some();
    let (key, _) = choice.entries().find(|(key, _)| !keys.iter().any(|known| *known == &***key)).filter(|_| is_kind)?;
    keras_options::meaning(kind, &keys, key)
}

/// The layer to write in place of a function that a formula calls, if a layer has the name.
fn layer_in_place_of_function(choice: &Choice<'_>) -> Option<String> {
    let formula = choice.main.or_else(|| choice.value_of("expression"))?;
    let kind = LayerKind::known(&arithmetic::unknown_function(formula)?)?;
    Some(match LayerKind::arity_of(kind) {
        Arity::Several => format!("write a layer `{{{kind}: [a, c], name: b}}`, and `b` here"),
        _ => format!("write a layer `{{{kind}: , inputs: a, name: b}}`, and `b` here"),
    })
}

/// Refuses a `mask` option of attention that reads no mask: it would describe nothing, and hide nothing.
fn reads_its_mask(choice: &Choice<'_>, kind: &str, n_read: usize) -> Result<(), ReadError> {
    let (n_expected, words, inputs) = match LayerKind::arity_of(kind) {
        Arity::UpToThree => (3, "queries, memory and a mask", "[x, x, mask]"),
        Arity::OneOrTwo => (2, "a sequence and a mask", "[x, mask]"),
        Arity::Nothing | Arity::One | Arity::Several | Arity::Named => return Ok(()),
    };
    let (Some(mark), Some(mask)) = (choice.place_of("mask"), choice.value_of("mask")) else { return Ok(()) };
    if n_read >= n_expected || !LayerKind::keys_of(kind).contains(&"mask") {
        return Ok(());
    }
    let mask = mask.text().unwrap_or_default();
    let message = format!("`mask: {mask}` of `{kind}`, which reads {n_read}, expected {n_expected}: {words}");
    let help = format!("name the mask, such as a `masking` layer: `inputs: {inputs}`; or leave `mask` out");
    Err(ReadError::new(message).or_at(mark).with_help(help))
}
