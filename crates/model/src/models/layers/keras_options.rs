//! Layers of other frameworks that are no kinds here, and options of Keras' layers, losses and metrics that are no
//! options, with the equivalent.

use crate::document::{ConfigProblem, ReadError};

/// Names in other frameworks that are not kinds here, with the equivalent.
const ELSEWHERE: &[(&str, &str)] = &[
    ("bidirectional", "write `{lstm: 64, bidirectional: true}`, or `gru` so"),
    (
        "time_distributed",
        "layers of the last axis work on every step: leave it out; for `conv` of `[steps, h, w, c]` write `conv3d` with \
         `kernel_size: [1, 3, 3]`",
    ),
    ("rnn", "write `lstm`, `gru` or `simple_rnn`"),
    ("depthwise_conv", "write `{conv1d: 8, kernel_size: 3, groups: 8}`, of 8 channels"),
    ("resizing", "write `resize` under `features` of `data`, or `upsample`"),
    ("center_crop", "write `crop`, or `center_crop` under `features` of `data`"),
    ("text_vectorization", "write `words` under `columns` of `data`"),
    ("string_lookup", "write `categories` under `columns` of `data`"),
    ("integer_lookup", "write `categories` under `columns` of `data`"),
    ("random_flip", "write `augment: {flip: true}` under `data`"),
    ("random_rotation", "write `augment: {rotation: 10}`, degrees, under `data`"),
    ("random_zoom", "write `augment: {zoom: 0.1}` under `data`"),
    ("random_translation", "write `augment: {translation: 0.1}` under `data`"),
    ("random_brightness", "write `augment: {brightness: 0.1}` under `data`"),
    ("random_contrast", "write `augment: {contrast: 0.1}` under `data`"),
    ("random_erasing", "write `augment: {erasing: 0.5}` under `data`"),
    ("random_saturation", "write `augment: {saturation: 0.2}` under `data`"),
    ("random_crop", "write `augment: {translation: 0.1}` under `data`"),
    ("mix_up", "write `augment: {mixup: 0.2}` under `data`"),
    ("cut_mix", "write `augment: {cutmix: 1}` under `data`"),
    ("split", "write a `{slice: [0, 4], axis: -1}` for each part"),
    ("einsum", "write `dot` of two layers, or `dense`"),
    ("glu", "write a `slice` for each half, and `{expression: \"a * sigmoid(b)\"}` of them"),
    ("hard_swish", "write `{expression: \"x * hard_sigmoid(x)\"}`"),
    ("hard_silu", "write `{expression: \"x * hard_sigmoid(x)\"}`"),
    ("mish", "write `{expression: \"x * tanh(softplus(x))\"}`"),
    ("thresholded_relu", "write `{expression: \"where(x > 1, x, 0)\"}`"),
    ("activity_regularization", "write `activity_regularizer: {l2: 1.0e-4}` beside the layer's options"),
    ("weight_normalization", "write `kernel_regularizer: {l2: 1.0e-4}`"),
    ("normalization", "scale the data (`data: {scale: …}`), or write `batch_norm`"),
    ("identity", "write `linear`, or leave it out"),
    (
        "category_encoding",
        "write `{one_hot: 5}` for `output_mode: one_hot`, and `{reduce: max, axis: 1}` of it for `multi_hot`, the \
         default there",
    ),
    (
        "additive_attention",
        "write `{expression: tanh(q + k)}` of `[5, 1, 8]` and `[1, 7, 8]`, `{conv: 1, kernel_size: 1, use_bias: \
         false}`, `{reshape: [5, 7]}`, `softmax`, and `{dot: [weights, values], axes: [2, 1]}`",
    ),
    ("group_query_attention", "write `{attention: 8, num_key_value_heads: 2}`"),
    ("stacked_rnn_cells", "write one `lstm` or `gru` after another, with `return_sequences: true` but for the last"),
    (
        "hashing",
        "write `{expression: ids % 1000}` of whole numbers, and `categories` under `columns` of `data` of text",
    ),
    ("discretization", "write `{expression: \"(x > 18) + (x > 65)\"}`, and `{cast: int32}` of it for an `embedding`"),
    ("einsum_dense", "write `dense`, or `dot` of two layers"),
    ("input", "name the network's inputs in `inputs`"),
    ("input_layer", "name the network's inputs in `inputs`"),
    ("lambda", "write `{expression: \"2 * x\"}`"),
    ("stop_gradient", "write `{expression: \"stop_gradient(x)\"}`"),
    ("adaptive_avg_pool", "write `global_avg_pool`"),
    (
        "spectral_normalization",
        "write `spectral_norm: true` beside the options of the layer, such as `{dense: 64, spectral_norm: true}`",
    ),
    ("spectral_norm", "write it beside the options of the layer, such as `{dense: 64, spectral_norm: true}`"),
    (
        "gradient_penalty",
        "write `{gradient: [score, x], name: slope}`, an `expression` of the norm, such as `(sqrt(x + 1e-12) - 1) ** 2` of \
         `{reduce: sum}` of its square, and the loss `value` of that",
    ),
    ("fft2d", "write `{fft: real, axis: [1, 2]}`, the axes of an example from 1"),
    ("fft2", "write `{fft: real, axis: [1, 2]}`, the axes of an example from 1"),
    ("ifft2d", "write `{ifft: real, axis: [1, 2], inputs: [re, im]}`, the axes of an example from 1"),
    ("ifft2", "write `{ifft: real, axis: [1, 2], inputs: [re, im]}`, the axes of an example from 1"),
    ("rfft2d", "write `{rfft: real, axis: [1, 2]}`, and `{rfft: imag, axis: [1, 2]}` for the other part"),
    ("rfft2", "write `{rfft: real, axis: [1, 2]}`, and `{rfft: imag, axis: [1, 2]}` for the other part"),
    ("irfft2d", "write `{irfft: , axis: [1, 2], inputs: [re, im]}`, the axes of an example from 1"),
    ("irfft2", "write `{irfft: , axis: [1, 2], inputs: [re, im]}`, the axes of an example from 1"),
    ("stft", "cut the signal into windows, `{reshape: [60, 256]}`, and write `{rfft: abs}` of them"),
    ("spectrogram", "cut the signal into windows, `{reshape: [60, 256]}`, and write `{rfft: abs}` of them"),
    ("clip", "write `{expression: \"clip(x, 0, 1)\"}`"),
    ("clip_by_value", "write `{expression: \"clip(x, 0, 1)\"}`"),
    ("gradient_tape", "write `{gradient: [y, x]}`"),
    ("hardtanh", "write `{expression: \"clip(x, -1, 1)\"}`"),
    ("median", "of 5 numbers: `sort`, and `{slice: [2, 3], axis: -1}` of it"),
    ("cumprod", "of numbers above 0: `{expression: log(x)}`, `cumsum`, and `{expression: exp(x)}`"),
    ("embedding_bag", "write `embedding`, and `{reduce: mean, axis: 1}` of it"),
    ("locally_connected", "no layer has a kernel for each place: write `conv`, or `flatten` and `dense`"),
    ("matmul", "write `{dot: [a, b], axes: [2, 1]}`"),
    ("batch_dot", "write `{dot: [a, b], axes: [2, 1]}`"),
    ("divide", "write `{expression: a / b}`"),
    ("stack", "write `{reshape: [1, -1]}` of each, and `{concat: [a, b], axis: 1}`"),
    ("expand_dims", "write `{reshape: [8, 1]}`, the dims of an example"),
    ("squeeze", "write `{reshape: [8]}`, the dims of an example"),
    ("roll", "write a `slice` for each part, and `{concat: [second, first], axis: 1}`"),
    ("arg_sort", "write `{sort: , name: s}`, and read `s.indices`"),
    ("layer_scale", "write `{variable: [8], initializer: {constant: 1.0e-6}, name: s}`, and `{multiply: [a, s]}`"),
    ("scale", "write `{expression: 0.1 * x}`; a factor that is learnt is a `variable`"),
    (
        "depth_to_space",
        "of 2 and `[4, 4, 12]`: `{reshape: [4, 4, 2, 2, 3]}`, `{permute: [1, 3, 2, 4, 5]}`, `{reshape: [8, 8, 3]}`",
    ),
    (
        "space_to_depth",
        "of 2 and `[8, 8, 3]`: `{reshape: [4, 2, 4, 2, 3]}`, `{permute: [1, 3, 2, 4, 5]}`, `{reshape: [4, 4, 12]}`",
    ),
    (
        "pixel_shuffle",
        "of 2 and `[4, 4, 12]`: `{reshape: [4, 4, 2, 2, 3]}`, `{permute: [1, 3, 2, 4, 5]}`, `{reshape: [8, 8, 3]}`",
    ),
];

/// Kinds, `[]` for every kind; names of options there; the equivalent.
type Meaning = (&'static [&'static str], &'static [&'static str], &'static str);

const RECURRENT: &[&str] = &["lstm", "gru", "simple_rnn"];

const CONVOLUTIONS: &[&str] = &["conv", "conv1d", "conv3d", "conv_transpose", "separable_conv", "conv_lstm"];

const MEANINGS: &[Meaning] = &[
    (RECURRENT, &["dropout", "recurrent_dropout"], "write a `dropout` layer before it"),
    (&["gru"], &["reset_after"], "it is Keras' with `reset_after: true`, the default there: leave it out"),
    (
        RECURRENT,
        &["merge_mode"],
        "both directions are put behind one another: write a `slice` for each half, and `add` them",
    ),
    (RECURRENT, &["return_state"], "layers read its last states as `NAME.h` and `NAME.c`: leave it out"),
    (RECURRENT, &["stateful"], "write `initial_state: NAME`, which starts from another layer's state"),
    (
        &["embedding"],
        &["mask_zero"],
        "write `{masking: 0, inputs: ids, name: mask}`, which the next layer reads too: `inputs: [embedding, mask]`",
    ),
    (&["attention"], &["key_dim", "value_dim"], "it is called `head_dim`"),
    (
        &["attention"],
        &["use_scale", "score_mode"],
        "Keras' `Attention` has no kernels: write `{dot: [q, k], axes: [2, 2]}`, `softmax` of it, and `dot` of that and \
         the values with `axes: [2, 1]`",
    ),
    (
        &["layer_norm"],
        &["axis"],
        "it is of the last axis, Keras' default; of all axes of an example write `{group_norm: 1}`",
    ),
    (
        &["global_avg_pool"],
        &["keepdims"],
        "write `{reduce: mean, axis: 1, keepdims: true}` of a sequence, and `axis: [1, 2]` of an image; `reduce` reads no \
         mask: with one, leave it out, and write `{reshape: [1, -1]}` after the pool",
    ),
    (
        &["global_max_pool"],
        &["keepdims"],
        "write `{reduce: max, axis: 1, keepdims: true}` of a sequence, and `axis: [1, 2]` of an image",
    ),
    (&["activation", "relu"], &["max_value"], "write `relu6`, or `{expression: \"minimum(relu(x), 4)\"}`"),
    (&["elu"], &["alpha"], "it is 1, Keras' default: leave it out"),
    (&["activation", "relu"], &["negative_slope"], "write `{leaky_relu: 0.1}`"),
    (&["activation", "relu"], &["threshold"], "write `{expression: \"where(x > 1, x, 0)\"}`"),
    (
        &["dropout"],
        &["noise_shape"],
        "write `spatial_dropout` for whole channels, `stochastic_depth` for whole examples",
    ),
    (
        &["cumsum"],
        &["exclusive"],
        "write `{cumsum: 1, inputs: a, name: c}`, and `{expression: c - a}`: the sums without the element itself",
    ),
    (&["sort"], &["descending"], "write `direction: descending`"),
    (&["top_k"], &["sorted"], "the largest stands first, as with `sorted: true`: leave it out"),
    (&["top_k"], &["axis", "dim"], "it is of the last axis: `permute` brings another there"),
    (
        RECURRENT,
        &["recurrent_kernel_constraint", "recurrent_kernel_regularizer", "recurrent_kernel_initializer"],
        "it is called `recurrent_constraint`, `recurrent_regularizer` or `recurrent_initializer`, as in Keras",
    ),
    (
        &[],
        &["spectral_norm"],
        "`dense`, `conv`, `conv1d`, `conv3d` and `conv_transpose` have it: leave it out, or write the layer as those",
    ),
    (
        &[],
        &["repeats"],
        "a block repeats: `blocks: {hidden: [{dense: 64, activation: relu}]}`, and `{hidden: , repeats: 3}`",
    ),
    (&[], &["seed"], "all draws follow from `seed` under `train`: leave it out"),
    (
        &[],
        &["input_shape", "batch_input_shape", "input_length"],
        "the dims of what the network reads stand in its `inputs`: leave it out",
    ),
    (&[], &["weights"], "write `initialize_from: FILE` under `train`"),
    (
        &[],
        &["max_norm", "min_max_norm", "non_neg"],
        "write `kernel_constraint: {max_norm: 3}`, or `bias_constraint`, …",
    ),
    (&[], &["unit_norm"], "write `kernel_constraint: unit_norm`; the layer `unit_norm` normalises a result"),
    (
        &[],
        &["l1", "l2", "l1_l2", "weight_decay", "regularizer", "W_regularizer"],
        "write `kernel_regularizer: {l2: 1.0e-4}`, or `weight_decay` under `train`, which is of the whole network",
    ),
    (&["dense"], &["out_features", "output_dim", "features", "num_outputs", "nodes"], "it is called `units`"),
    (CONVOLUTIONS, &["out_channels", "features", "units", "num_filters", "channels"], "it is called `filters`"),
    (&["depthwise_conv"], &["filters", "out_channels"], "each channel has `depth_multiplier` kernels: leave it out"),
    (RECURRENT, &["hidden_size", "num_units", "features"], "it is called `units`"),
    (RECURRENT, &["batch_first"], "the batch is first: leave it out"),
    (RECURRENT, &["num_layers"], "write one layer after another, with `return_sequences: true` but for the last"),
    (&["embedding"], &["num_embeddings", "vocab_size", "vocabulary_size"], "it is called `input_dim`"),
    (&["embedding"], &["embedding_dim", "embed_dim", "features", "units"], "it is called `output_dim`"),
    (&["embedding"], &["padding_idx"], "write `{masking: 0, inputs: ids, name: mask}` for the layers that read a mask"),
    (
        &[],
        &[
            "in_features",
            "in_channels",
            "input_size",
            "input_dim",
            "num_features",
            "normalized_shape",
            "embed_dim",
            "d_model",
        ],
        "it is the size of what the layer reads: leave it out",
    ),
    (&[], &["kernel"], "it is called `kernel_size`"),
    (&[], &["stride", "subsample"], "it is called `strides`"),
    (&[], &["dilation", "dilations", "rate_of_dilation"], "it is called `dilation_rate`"),
    (&[], &["bias"], "it is called `use_bias`"),
    (&[], &["eps"], "it is called `epsilon`"),
    (&["batch_norm"], &["decay"], "it is called `momentum`"),
    (
        &["batch_norm", "group_norm", "instance_norm", "layer_norm"],
        &["affine", "elementwise_affine"],
        "write `center: false, scale: false`",
    ),
    (
        &["batch_norm"],
        &["track_running_stats", "training"],
        "statistics of the batch in training, running ones else; `trainable: false` has those in training, too",
    ),
    (
        &["batch_norm"],
        &["fused", "renorm", "virtual_batch_size", "synchronized"],
        "leave it out; over replicas write `batch_norm: {across: 8}` under `mesh`",
    ),
    (&["group_norm"], &["num_groups"], "it is called `groups`"),
    (
        &["dropout", "spatial_dropout", "alpha_dropout", "stochastic_depth"],
        &["p", "prob", "keep_prob", "drop_prob"],
        "it is called `rate`: the share that is dropped",
    ),
    (
        &["attention", "transformer_block", "llama_block"],
        &["heads", "n_heads", "nhead", "num_attention_heads"],
        "it is called `num_heads`",
    ),
    (&["attention", "transformer_block", "llama_block"], &["causal", "is_causal"], "it is called `use_causal_mask`"),
    (
        &["transformer_block", "llama_block"],
        &["hidden_dim", "mlp_dim", "dim_feedforward", "ff_dim", "intermediate_size"],
        "it is called `intermediate_dim`",
    ),
    (&["transformer_block"], &["norm_first", "pre_norm"], "it is called `normalize_first`"),
    (&["upsample"], &["scale_factor", "scale"], "it is called `size`"),
    (&["upsample"], &["mode"], "it is called `interpolation`: `nearest`, `bilinear`"),
    (&["upsample"], &["align_corners"], "it is `false`, as in Keras: leave it out"),
    (&["max_pool", "avg_pool"], &["ceil_mode"], "write `padding: same`, which pads at the end"),
    (&["leaky_relu"], &["alpha"], "it is called `negative_slope`"),
    (&[], &["inplace"], "leave it out"),
    (&[], &["dim", "axes"], "it is called `axis`; the batch is axis 0"),
    (&[], &["keepdim", "keep_dims"], "it is called `keepdims`"),
    (&["reshape"], &["shape"], "it is called `target_shape`"),
    (
        &[],
        &["init", "kernel_init", "weight_init", "initializer"],
        "it is called `kernel_initializer`, `bias_initializer`, …",
    ),
    (&[], &["act", "activation_fn", "nonlinearity"], "it is called `activation`"),
    (&[], &["activation"], "write the activation as a layer of its own after it, such as `- relu`"),
    (&[], &["dropout"], "write a `dropout` layer after it"),
    (&[], &["batch_norm", "normalizer_fn", "norm"], "write a `batch_norm` layer after it"),
];

/// Options of Keras' losses and metrics, with the equivalent.
const OF_OBJECTIVES: &[(&str, &str)] = &[
    (
        "from_logits",
        "cross entropies and their metrics read logits, and apply softmax or sigmoid themselves: leave it out, and the \
         activation of the last layer too",
    ),
    ("ignore_class", "write `example_weights: NAME`, a feature that is 0 there"),
    ("sample_weight", "write `example_weights: NAME`"),
    ("class_weight", "write `class_weights: [1, 3, 0.5]`, a number for each class"),
    ("loss_weight", "it is called `weight`"),
    ("axis", "classes are along the last axis: leave it out"),
    ("num_classes", "there are as many classes as the output has logits: leave it out"),
    ("threshold", "an answer is yes where its logit is above 0, a probability of 0.5: leave it out"),
    ("thresholds", "an answer is yes where its logit is above 0, a probability of 0.5: leave it out"),
];

/// The error of an option of a loss or metric; it has the equivalent if the option is Keras'.
pub(super) fn of_objective(error: ReadError) -> ReadError {
    let help = match &error.problem {
        ConfigProblem::UnknownKey { key, .. } => OF_OBJECTIVES.iter().find(|(option, _)| option == key),
        _ => None,
    };
    match help {
        Some((_, help)) => error.with_help(*help),
        None => error,
    }
}

/// The equivalent of an option of Keras' layer of this kind, which is ours or an activation's name.
pub(super) fn meaning(kind: &str, keys: &[&str], option: &str) -> Option<&'static str> {
    let is_of_kind = |kinds: &[&str]| kinds.is_empty() || kinds.contains(&kind);
    // Another name of a key helps only where the kind has that key.
    let has_key = |help: &str| match help.strip_prefix("it is called `").and_then(|rest| rest.split_once('`')) {
        Some((key, _)) => keys.contains(&key) || key.ends_with("_initializer"),
        None => true,
    };
    let is_it = |(kinds, options, help): &&Meaning| {
        is_of_kind(kinds) && options.contains(&option) && (!kinds.is_empty() || has_key(help))
    };
    MEANINGS.iter().find(is_it).map(|(_, _, help)| *help)
}

/// The equivalent of a layer of another framework.
pub(super) fn elsewhere(name: &str) -> Option<&'static str> {
    let name = without_axes(name);
    ELSEWHERE.iter().find(|(word, _)| without_axes(word) == name).map(|(_, help)| *help)
}

/// [`plain`] without a number of axes.
pub(super) fn without_axes(name: &str) -> String {
    ["1d", "2d", "3d"].iter().fold(plain(name), |name, axes| name.replace(axes, ""))
}

/// A name without case and underscores.
pub(super) fn plain(name: &str) -> String {
    name.chars().filter(|&c| c != '_').collect::<String>().to_lowercase()
}
