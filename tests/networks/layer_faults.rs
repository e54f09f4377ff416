//! Every kind of layer written wrong in five ways: without what it needs, with a value of another type, of inputs of another rank,
//! with sizes that cannot be, with an unknown key. Each error has its line and names what was found and what was expected.
//! Then the whole messages of layers that read what they cannot.

use bf16scope::document;
use bf16scope::models::Model;
use bf16scope::models::layers::{Expression, LayerKind, Network};

/// A kind; its inputs, each `name: dims`; the layer as it should be; an input of another rank; the layer with a wrong type; with a
/// size that cannot be. `-` is a fault that the kind cannot have: it takes any rank, or no options, or no sizes.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const IMAGE: &str = "x: [8, 8, 4]";
const SEQUENCE: &str = "x: [8, 4]";
const VECTOR: &str = "x: [8]";
const VECTOR_WITHOUT_AXES: &str = "x: []";
const INDICES: &str = "x: {shape: [8], dtype: int32}";
const PAIR: &str = "x: [8, 4], y: [8, 4]";

const ROWS: &[Row] = &[
    ("dense", VECTOR, "{dense: 4}", "x: [2, 2, 2, 2]", "{dense: four}", "{dense: 0}"),
    ("conv", IMAGE, "{conv: 4, kernel_size: 3}", VECTOR, "{conv: four, kernel_size: 3}", "{conv: 4, kernel_size: 9}"),
    (
        "conv1d",
        SEQUENCE,
        "{conv1d: 4, kernel_size: 3}",
        IMAGE,
        "{conv1d: 4, kernel_size: x}",
        "{conv1d: 4, kernel_size: 9}",
    ),
    (
        "conv3d",
        "x: [4, 4, 4, 2]",
        "{conv3d: 4, kernel_size: 3}",
        IMAGE,
        "{conv3d: 4, kernel_size: x}",
        "{conv3d: 4, kernel_size: 9}",
    ),
    (
        "conv_transpose",
        IMAGE,
        "{conv_transpose: 4, kernel_size: 3}",
        VECTOR,
        "{conv_transpose: x, kernel_size: 3}",
        "{conv_transpose: 4, kernel_size: 3, strides: 2, output_padding: 2}",
    ),
    (
        "separable_conv",
        IMAGE,
        "{separable_conv: 4, kernel_size: 3}",
        VECTOR,
        "{separable_conv: 4, kernel_size: 3, depth_multiplier: x}",
        "{separable_conv: 4, kernel_size: 9}",
    ),
    ("depthwise_conv", IMAGE, "{depthwise_conv: 3}", SEQUENCE, "{depthwise_conv: x}", "{depthwise_conv: 9}"),
    (
        "batch_norm",
        IMAGE,
        "{batch_norm: {momentum: 0.9}}",
        "-",
        "{batch_norm: {momentum: x}}",
        "{batch_norm: {axis: 7}}",
    ),
    ("group_norm", IMAGE, "{group_norm: 2}", "-", "{group_norm: x}", "{group_norm: 3}"),
    ("instance_norm", IMAGE, "instance_norm", "-", "{instance_norm: {center: x}}", "{instance_norm: -1}"),
    ("layer_norm", VECTOR, "layer_norm", "-", "{layer_norm: {epsilon: x}}", "{layer_norm: {epsilon: -1}}"),
    ("rms_norm", VECTOR, "rms_norm", "-", "{rms_norm: {epsilon: x}}", "{rms_norm: {epsilon: -1}}"),
    ("max_pool", IMAGE, "{max_pool: 2}", VECTOR, "{max_pool: x}", "{max_pool: 9}"),
    ("avg_pool", IMAGE, "{avg_pool: 2}", VECTOR, "{avg_pool: x}", "{avg_pool: 9}"),
    ("global_max_pool", IMAGE, "global_max_pool", VECTOR, "{global_max_pool: {data_format: x}}", "-"),
    ("global_avg_pool", IMAGE, "global_avg_pool", VECTOR, "{global_avg_pool: {data_format: x}}", "-"),
    ("dropout", VECTOR, "{dropout: 0.5}", "-", "{dropout: x}", "{dropout: 1.5}"),
    ("spatial_dropout", IMAGE, "{spatial_dropout: 0.5}", VECTOR, "{spatial_dropout: x}", "{spatial_dropout: 1.5}"),
    ("stochastic_depth", VECTOR, "{stochastic_depth: 0.5}", "-", "{stochastic_depth: x}", "{stochastic_depth: 1.5}"),
    ("squeeze_excite", IMAGE, "{squeeze_excite: 2}", VECTOR, "{squeeze_excite: x}", "{squeeze_excite: 0}"),
    ("mb_conv", IMAGE, "{mb_conv: 4, kernel_size: 3}", VECTOR, "{mb_conv: x}", "{mb_conv: 4, repeats: 0}"),
    ("expression", VECTOR, "{expression: '2 * x'}", "-", "{expression: 3}", "{expression: '2 * x +'}"),
    ("activation", VECTOR, "{activation: relu}", "-", "{activation: 3}", "{activation: rely}"),
    ("leaky_relu", VECTOR, "{leaky_relu: 0.1}", "-", "{leaky_relu: x}", "-"),
    ("prelu", IMAGE, "{prelu: {shared_axes: [1, 2]}}", "-", "{prelu: {shared_axes: x}}", "{prelu: {shared_axes: [5]}}"),
    ("softmax", VECTOR, "softmax", "-", "{softmax: x}", "{softmax: 7}"),
    ("reduce", IMAGE, "{reduce: sum, axis: 1}", "-", "{reduce: 3}", "{reduce: sum, axis: 9}"),
    ("cumsum", SEQUENCE, "{cumsum: 1}", VECTOR_WITHOUT_AXES, "{cumsum: x}", "{cumsum: 7}"),
    ("sort", SEQUENCE, "{sort: 1}", VECTOR_WITHOUT_AXES, "{sort: x}", "{sort: 7}"),
    ("top_k", VECTOR, "{top_k: 3}", VECTOR_WITHOUT_AXES, "{top_k: x}", "{top_k: 9}"),
    ("arg_max", VECTOR, "arg_max", VECTOR_WITHOUT_AXES, "{arg_max: x}", "{arg_max: 7}"),
    ("arg_min", SEQUENCE, "{arg_min: 1}", VECTOR_WITHOUT_AXES, "{arg_min: x}", "{arg_min: 7}"),
    ("fft", SEQUENCE, "{fft: real}", VECTOR_WITHOUT_AXES, "{fft: phase}", "{fft: real, axis: 7}"),
    ("ifft", PAIR, "{ifft: real, inputs: [x, y]}", "x: [8, 4], y: [8]", "{ifft: phase}", "{ifft: real, axis: 0}"),
    ("rfft", SEQUENCE, "{rfft: abs}", VECTOR_WITHOUT_AXES, "{rfft: phase}", "{rfft: abs, axis: [1, 1]}"),
    ("irfft", PAIR, "{irfft: 6, inputs: [x, y]}", "x: [8, 4], y: [8]", "{irfft: x}", "{irfft: 5, inputs: [x, y]}"),
    ("viterbi", "x: [8, 4], t: [4, 4]", "{viterbi: [x, t]}", "x: [8], t: [4, 4]", "{viterbi: 3}", "{viterbi: [t, x]}"),
    ("gradient", VECTOR, "{gradient: [x, x]}", "x: {shape: [8], dtype: int32}", "{gradient: 3}", "{gradient: [x]}"),
    ("unit_norm", VECTOR, "unit_norm", "-", "{unit_norm: x}", "{unit_norm: 7}"),
    (
        "dot",
        PAIR,
        "{dot: [x, y], axes: 2}",
        "x: [8, 4], y: [2, 8, 4]",
        "{dot: [x, y], axes: z}",
        "{dot: [x, y], axes: 7}",
    ),
    (
        "cosine",
        PAIR,
        "{cosine: [x, y], axes: 2}",
        "x: [8, 4], y: [2, 8, 4]",
        "{cosine: [x, y], axes: z}",
        "{cosine: [x, y], axes: 7}",
    ),
    ("gaussian_noise", VECTOR, "{gaussian_noise: 0.5}", "-", "{gaussian_noise: x}", "{gaussian_noise: -1}"),
    ("gaussian_dropout", VECTOR, "{gaussian_dropout: 0.5}", "-", "{gaussian_dropout: x}", "{gaussian_dropout: 1.5}"),
    ("alpha_dropout", VECTOR, "{alpha_dropout: 0.5}", "-", "{alpha_dropout: x}", "{alpha_dropout: 1.5}"),
    (
        "gather",
        "x: [8, 4], y: {shape: [2], dtype: int32}",
        "{gather: [x, y]}",
        "x: [8, 4], y: [2]",
        "{gather: 3}",
        "{gather: [x]}",
    ),
    ("one_hot", INDICES, "{one_hot: 4}", VECTOR, "{one_hot: x}", "{one_hot: 0}"),
    ("cast", VECTOR, "{cast: int32}", "-", "{cast: 3}", "{cast: int99}"),
    ("masking", SEQUENCE, "{masking: 0}", "x: []", "{masking: x}", "-"),
    ("rescaling", VECTOR, "{rescaling: 0.5}", "-", "{rescaling: x}", "-"),
    (
        "embedding",
        INDICES,
        "{embedding: {input_dim: 9, output_dim: 4}}",
        VECTOR,
        "{embedding: {input_dim: x, output_dim: 4}}",
        "{embedding: {input_dim: 0, output_dim: 4}}",
    ),
    (
        "position_embedding",
        SEQUENCE,
        "{position_embedding: 8}",
        VECTOR,
        "{position_embedding: x}",
        "{position_embedding: 7}",
    ),
    ("class_token", SEQUENCE, "class_token", VECTOR, "{class_token: 3}", "-"),
    // The input is the label: the layer reads nothing.
    ("variable", "labels: [8]", "{variable: [8]}", "-", "{variable: x}", "{variable: [0]}"),
    ("constant", "labels: [2]", "{constant: [1, 2.5]}", "-", "{constant: x}", "{constant: [[1], [2, 3]]}"),
    ("lstm", SEQUENCE, "{lstm: 4}", VECTOR, "{lstm: x}", "{lstm: 4, initial_state: x}"),
    ("gru", SEQUENCE, "{gru: 4}", VECTOR, "{gru: x}", "{gru: 0}"),
    ("simple_rnn", SEQUENCE, "{simple_rnn: 4}", VECTOR, "{simple_rnn: x}", "{simple_rnn: 0}"),
    (
        "conv_lstm",
        "x: [4, 8, 8, 2]",
        "{conv_lstm: 4, kernel_size: 3}",
        IMAGE,
        "{conv_lstm: 4, kernel_size: x}",
        "{conv_lstm: 4, kernel_size: 9}",
    ),
    ("attention", SEQUENCE, "{attention: 2}", VECTOR, "{attention: x}", "{attention: 3}"),
    (
        "transformer_block",
        SEQUENCE,
        "{transformer_block: 2, intermediate_dim: 8}",
        VECTOR,
        "{transformer_block: x, intermediate_dim: 8}",
        "{transformer_block: 3, intermediate_dim: 8}",
    ),
    (
        "llama_block",
        SEQUENCE,
        "{llama_block: 2, intermediate_dim: 8}",
        VECTOR,
        "{llama_block: x, intermediate_dim: 8}",
        "{llama_block: 3, intermediate_dim: 8}",
    ),
    ("flatten", IMAGE, "flatten", "-", "{flatten: 3}", "-"),
    ("reshape", VECTOR, "{reshape: [2, 4]}", "-", "{reshape: x}", "{reshape: [3, 4]}"),
    ("repeat_vector", VECTOR, "{repeat_vector: 2}", IMAGE, "{repeat_vector: x}", "{repeat_vector: 0}"),
    ("permute", SEQUENCE, "{permute: [2, 1]}", IMAGE, "{permute: x}", "{permute: [1, 1]}"),
    ("take", SEQUENCE, "{take: -1}", "-", "{take: x}", "{take: 8}"),
    ("slice", SEQUENCE, "{slice: [1, -1]}", "-", "{slice: x}", "{slice: [5, 2]}"),
    ("zero_padding", IMAGE, "{zero_padding: 1}", VECTOR, "{zero_padding: x}", "{zero_padding: [[-1, 0], [0, 0]]}"),
    ("crop", IMAGE, "{crop: 1}", VECTOR, "{crop: x}", "{crop: 4}"),
    ("upsample", IMAGE, "{upsample: 2}", VECTOR, "{upsample: x}", "{upsample: 0}"),
    (
        "concat",
        PAIR,
        "{concat: [x, y]}",
        "x: [8, 4], y: [2, 8, 4]",
        "{concat: [x, y], axis: z}",
        "{concat: [x, y], axis: 7}",
    ),
    ("add", PAIR, "{add: [x, y]}", "x: [8, 4], y: [7, 3]", "{add: 3}", "{add: [x]}"),
    ("subtract", PAIR, "{subtract: [x, y]}", "x: [8, 4], y: [7, 3]", "{subtract: 3}", "{subtract: [x]}"),
    ("multiply", PAIR, "{multiply: [x, y]}", "x: [8, 4], y: [7, 3]", "{multiply: 3}", "{multiply: [x]}"),
    ("average", PAIR, "{average: [x, y]}", "x: [8, 4], y: [7, 3]", "{average: 3}", "{average: [x]}"),
    ("maximum", PAIR, "{maximum: [x, y]}", "x: [8, 4], y: [7, 3]", "{maximum: 3}", "{maximum: [x]}"),
    ("minimum", PAIR, "{minimum: [x, y]}", "x: [8, 4], y: [7, 3]", "{minimum: 3}", "{minimum: [x]}"),
];

/// Kinds that stand alone: no option has to be given.
const ALONE: &[&str] = &[
    "batch_norm",
    "instance_norm",
    "layer_norm",
    "rms_norm",
    "max_pool",
    "avg_pool",
    "global_max_pool",
    "global_avg_pool",
    "softmax",
    "cumsum",
    "sort",
    "arg_max",
    "arg_min",
    "fft",
    "ifft",
    "rfft",
    "irfft",
    "unit_norm",
    "leaky_relu",
    "prelu",
    "masking",
    "class_token",
    "flatten",
    "upsample",
    "zero_padding",
    "crop",
    "group_norm",
];

/// The error of a network of one layer, if there is one.
fn read(inputs: &str, layer: &str) -> Option<String> {
    let text = format!("kind: layers\ninputs: {{{inputs}}}\nlayers:\n  - {layer}\nloss: mean_squared_error\n");
    document::from_str::<Model>("m.yaml", &text).err().map(|error| error.to_string())
}

/// The layer with one more key, in any of its forms.
fn with_unknown_key(kind: &str, layer: &str) -> String {
    match layer.strip_suffix('}') {
        Some(rest) => format!("{rest}, wrong_key: 1}}"),
        None => format!("{{{kind}: , wrong_key: 1}}"),
    }
}

#[test]
fn every_kind_written_wrong_in_five_ways_says_where_and_how() {
    let unknown = read(VECTOR, "{no_such_kind: 1}").unwrap();
    let (_, kinds) = unknown.split_once("expected one of ").unwrap();
    let kinds: Vec<&str> = kinds.lines().next().unwrap().split(", ").collect();
    assert_eq!(
        ROWS.iter().map(|row| row.0).collect::<Vec<_>>(),
        kinds,
        "each kind has a row, in the order of the kinds"
    );
    let mut wrong = Vec::new();
    for &(kind, inputs, layer, rank, typed, size) in ROWS {
        if let Some(error) = read(inputs, layer) {
            wrong.push(format!("{kind} as it should be: {error}"));
        }
        let missing = if ALONE.contains(&kind) { "-" } else { kind };
        let unknown = with_unknown_key(kind, layer);
        let faults = [
            ("missing", inputs, missing, vec![]),
            ("type", inputs, typed, vec!["expected"]),
            ("rank", rank, if rank == "-" { "-" } else { layer }, vec![kind, "expected"]),
            ("size", inputs, size, vec!["expected"]),
            ("key", inputs, unknown.as_str(), vec!["unknown key `wrong_key`", "expected one of"]),
        ];
        for (fault, inputs, layer, words) in faults.into_iter().filter(|(_, _, layer, _)| *layer != "-") {
            let Some(error) = read(inputs, layer) else {
                wrong.push(format!("{kind}: {fault}: `{layer}` is taken"));
                continue;
            };
            let first = error.lines().next().unwrap();
            let is_placed = first.starts_with("m.yaml:4:");
            // The expected value, or the text to write.
            let has_words = words.iter().all(|word| match *word {
                "expected" => first.contains(word) || error.contains("help: "),
                word => first.contains(word),
            });
            let says_missing =
                fault != "missing" || ["missing key `", "expected at least two"].iter().any(|it| first.contains(it));
            let says_found = fault != "type"
                || ["found ", "unknown value", "reads `", "names no layer"].iter().any(|it| first.contains(it));
            if !(is_placed && has_words && says_missing && says_found) {
                wrong.push(format!("{kind}: {fault}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Inputs, layers, the message after the layer's name and what it reads, and the help.
const MESSAGES: &[(&str, &str, &str, &str)] = &[
    (
        VECTOR,
        "[{dense: 8, tied_to: nowhere}]",
        "layer `dense` is tied to `nowhere`, which is no layer above it",
        "there are x, dense",
    ),
    (
        VECTOR,
        "[{flatten: , name: f}, {dense: 8, tied_to: f}]",
        "layer `f` (flatten) has no table and no kernel of its own to be tied to",
        "name an `embedding`, or a `dense` layer that is neither tied itself nor has a `spectral_norm`",
    ),
    (
        VECTOR,
        "[{dense: 8, name: a}, {dense: 8, tied_to: a, spectral_norm: true}]",
        "`spectral_norm` of a layer without a kernel: `tied_to` names another's",
        "leave one of them out",
    ),
    (
        VECTOR,
        "[{dense: 8, name: d}, {expression: d * labels}]",
        "layer `expression` reads `labels`, which is neither an input nor a layer",
        "it is a label: layers read it where it stands under `inputs`; losses may name inputs, too",
    ),
    (
        SEQUENCE,
        "[{sort: 3}]",
        "axis is 3, expected an axis of x f32[32,8,4] after the batch",
        "the batch is axis 0: write 1 to 2, or -1 for the last",
    ),
    (
        SEQUENCE,
        "[{fft: real, axis: [1, -2]}]",
        "axes are [1, -2], expected axes of f32[32,8,4] after the batch, each once",
        "",
    ),
    (
        "x: [8, 4], y: [8, 3]",
        "[{ifft: real, inputs: [x, y]}]",
        "the real part is f32[32,8,4] and the imaginary f32[32,8,3], expected one shape",
        "",
    ),
    (
        PAIR,
        "[{irfft: 8, inputs: [x, y]}]",
        "x f32[32,8,4] has 4 frequencies along axis 2, expected 5 for a length of 8",
        "4 frequencies are of 6 or 7 numbers",
    ),
    (
        "x: [5793]",
        "[rfft]",
        "axis 1 of f32[32,5793] has 5793 elements, expected at most 5792",
        "a transform is a product with an n×n matrix here: cut the axis into shorter windows, by `reshape`",
    ),
    (
        INDICES,
        "[fft]",
        "x is s32[32,8], expected a floating dtype",
        "cast it with .cast(DType::F32), or in YAML with the layer `cast: compute`",
    ),
    (
        "labels: [2]",
        "[{constant: [1, 2.5], to: int32}]",
        "one of its numbers is 2.5, expected whole numbers of 32 bits",
        "leave `to: int32` out",
    ),
    (
        "labels: [2]",
        "[{constant: [1, x]}]",
        "found string \"x\", expected a number, a list of numbers, or lists of equally many",
        "",
    ),
    ("labels: [2]", "[{constant: [[1, 2], [3]]}]", "a row has the dims [1] and the first [2], expected equal ones", ""),
    (
        VECTOR,
        "[{dense: 8, name: a, trainable: false}, {share: a, trainable: false}]",
        "`trainable` of a layer that shares the variables of `a`",
        "write it at `a`, which has the variables; a loss that trains only some names them: `variables: 'NAME/*'`",
    ),
    (
        VECTOR,
        "[{dense: 8, name: a, trainable: false}, {dense: 8, share: a}]",
        "layer `dense` shares `a`, which is of another kind or has other options",
        "write `{share: a}` and nothing of the kind: it is the same layer",
    ),
    (VECTOR, "[{dense: 8, trainable: maybe}]", "found string \"maybe\", expected true or false", ""),
    (
        "x: []",
        "[{cumsum: 1}]",
        "axis is 1, expected an axis of x f32[32] after the batch",
        "x has one number for each example: reshape what it is computed from",
    ),
    (
        IMAGE,
        "[{attention: 2}]",
        "queries f32[32,8,8,4] has rank 4, expected 3: [batch, positions, features]",
        "join axes, such as height and width, by `{reshape: [-1, FEATURES]}`; or write `attention_axes: 2`: positions of axis 2 \
         see those with the same place on the axes before it",
    ),
    (
        IMAGE,
        "[{attention: 2, attention_axes: [1]}]",
        "attention_axes is 1 of queries f32[32,8,8,4], expected 2",
        "positions are the axis before the features: `permute` brings another there",
    ),
    (
        "x: [4, 8, 6], y: [5, 8, 6]",
        "[{attention: 2, attention_axes: 2, inputs: [x, y]}]",
        "memory f32[32,5,8,6] does not fit queries f32[32,4,8,6], expected the same axes before the positions",
        "",
    ),
    (
        "x: [4, 8, 6], m: [8]",
        "[{attention: 2, attention_axes: 2, inputs: [x, x, m]}]",
        "mask f32[32,8] is not [batch, …, others] of queries f32[32,4,8,6]",
        "`mask: padding`, `segments` or `full` says what it is",
    ),
    (
        "x: [4, 8, 6], m: [8]",
        "[{attention: 2, attention_axes: 2, mask: segments, inputs: [x, x, m]}]",
        "mask f32[32,8] is not [batch, …, positions] of queries f32[32,4,8,6]",
        "`mask: padding`, `segments` or `full` says what it is",
    ),
    (
        "x: [4, 8, 6], m: [8]",
        "[{attention: 2, attention_axes: 2, mask: full, inputs: [x, x, m]}]",
        "mask f32[32,8] is not [batch, …, positions, others] of queries f32[32,4,8,6]",
        "`mask: padding`, `segments` or `full` says what it is",
    ),
    (
        SEQUENCE,
        "[{attention: 2, attention_axes: [1, 2]}]",
        "found a list, expected the axis of positions, such as `2` of `[batch, windows, positions, features]`",
        "",
    ),
    (
        "x: [8, 4], t: [4, 4]",
        "[{viterbi: [x, t, t, t]}]",
        "it reads 4, expected scores, transitions and maybe lengths",
        "",
    ),
    ("x: [8], t: [4, 4]", "[{viterbi: [x, t]}]", "scores f32[32,8] has rank 2, expected 3: [batch, steps, tags]", ""),
    ("x: [8, 4], t: [4, 4], n: []", "[{viterbi: [x, t, n]}]", "lengths are f32[32], expected whole numbers [32]", ""),
    (
        SEQUENCE,
        "[{attention: 2, inputs: [x, x, x, x]}]",
        "layer `attention` (attention) reads 4, expected one to three",
        "join them first, with `concat` or `add`",
    ),
    (
        SEQUENCE,
        "[{transformer_block: {num_heads: 2, intermediate_dim: 8, repeats: 1000}}, \
         {transformer_block: {num_heads: 2, intermediate_dim: 8, repeats: 201}}]",
        "the network has more than 12000 layers, of which a block of `repeats` counts as 10",
        "",
    ),
    (SEQUENCE, "[{softmax: {axis: 7}}]", "axes are [7], expected axes of f32[32,8,4] after the batch, each once", ""),
    (
        "x: [4, 4, 4]",
        "[masking]",
        "x f32[32,4,4,4] has rank 4, expected 2 or 3: [batch, steps] or [batch, steps, features]",
        "",
    ),
    (
        "x: [8, 4], y: {shape: [2], dtype: int32}",
        "[{gather: [x, y, y]}]",
        "it reads 3, expected two: rows, and indices",
        "",
    ),
    (
        "x: [8], y: {shape: [2, 2], dtype: int32}",
        "[{gather: [x, y]}]",
        "x f32[32,8] and indices s32[32,2,2] meet, expected [batch, n, …] and [batch] or [batch, k]",
        "",
    ),
    (
        SEQUENCE,
        "[{zero_padding: 1, data_format: channels_first}]",
        "`channels_first` is for images, expected `channels_last`",
        "",
    ),
    (
        SEQUENCE,
        "[{zero_padding: [[1, 2], [3, 4]]}]",
        "the margins are of 2 axes, and there are 1 axes of places",
        "write one number, or one, or [before, after], for each axis",
    ),
    (
        IMAGE,
        "[{crop: 5}]",
        "5 and 5 of axis 1 of f32[32,8,8,4] leave nothing",
        "cut less, or make what it reads larger",
    ),
    (
        SEQUENCE,
        "[{crop: 5}]",
        "5 and 5 of axis 1 of f32[32,8,4] leave nothing",
        "cut less, or make what it reads larger",
    ),
    (
        SEQUENCE,
        "[{slice: [5, 3], axis: 1}]",
        "bounds are [5, 3], expected a range within the 8 positions of axis 1",
        "",
    ),
    (PAIR, "[{dot: [x, y, y]}]", "it reads 3 and has 1 axes, expected two, and one axis or one of each", ""),
    (
        "x: [8, 4], y: [8, 5]",
        "[{dot: [x, y], axes: 2}]",
        "f32[32,8,4] along axis 2 and f32[32,8,5] along axis 2 meet, expected one dtype, one batch and equal sizes of \
         axes after it",
        "",
    ),
    (SEQUENCE, "[{reduce: sum, axis: 9}]", "axes are [9], expected axes of f32[32,8,4] after the batch, each once", ""),
    (
        SEQUENCE,
        "[{upsample: 2, data_format: channels_first}]",
        "`channels_first` is for images and nearest places, expected `channels_last`",
        "",
    ),
    (
        VECTOR,
        "[{lstm: 2}]",
        "x f32[32,8] has rank 2, expected 3: [batch, steps, inputs]",
        "make it a sequence: `{reshape: [-1, 1]}` has a step for each number, `{repeat_vector: 5}` five equal steps",
    ),
    (
        IMAGE,
        "[{simple_rnn: 2}]",
        "x f32[32,8,8,4] has rank 4, expected 3: [batch, steps, inputs]",
        "join the axes after the steps: `{reshape: [STEPS, -1]}`",
    ),
    (
        "x: [4, 8, 8, 2]",
        "[{gru: 2}]",
        "x f32[32,4,8,8,2] has rank 5, expected 3: [batch, steps, inputs]",
        "write `conv_lstm` for a sequence of images, or `{reshape: [STEPS, -1]}` before it",
    ),
    (
        VECTOR,
        "[{variable: [8], inputs: x, name: v}, {add: [x, v]}]",
        "layer `v` (variable) reads 1, expected nothing",
        "leave `inputs` out, and name the layer where it is read",
    ),
    (
        "x: {shape: [8], dtype: int32}, y: {shape: [8], dtype: int32}",
        "[{expression: x // y}]",
        "`//` of s32[32,8], expected a divisor that is a number of at least 1",
        "write `{cast: compute}` before it",
    ),
    (SEQUENCE, "[{repeat_vector: 2}]", "x f32[32,8,4] has rank 3, expected 2: [batch, features]", ""),
    (
        "x: [100000000, 8]",
        "[{attention: 2}]",
        "dot result is f32[32,2,100000000,100000000], expected at most 2^56 bytes",
        "",
    ),
    (
        "x: [8, 6]",
        "[{attention: 4}]",
        "6 features do not divide into 4 heads",
        "write a number of heads that divides 6, or say `head_dim`",
    ),
    (
        "x: [8, 6], m: [8]",
        "[{attention: 2, mask: full, inputs: [x, x, m]}]",
        "mask f32[32,8] is not [batch, positions, others], expected [32, 8, 8]",
        "`mask: padding`, `segments` or `full` says what it is",
    ),
    (
        "x: [8, 6], m: [8]",
        "[{attention: 2, inputs: [x, m]}]",
        "memory f32[32,8] has rank 2, expected 3: [batch, positions, features]",
        "a mask is the third of what attention reads: `inputs: [x, x, mask]`",
    ),
    (
        "x: [8, 6], m: [8, 1]",
        "[{gru: 2, inputs: [x, m]}]",
        "mask f32[32,8,1] is not of x f32[32,8,6], expected [batch, steps]",
        "a mask has one number for each step: an input of `[steps]`, or what `masking` gives",
    ),
    (
        "x: [8], n: {shape: [8], dtype: int32}",
        "[{expression: x * n}]",
        "f32[32,8] and s32[32,8] meet, expected equal dtypes",
        "cast one of them with .cast(dtype), or in YAML with the layer `cast: compute`",
    ),
    (
        "x: [8, 6]",
        "[{attention: 2, relative_positions: {num_buckets: 2, max_distance: 8}}]",
        "2 buckets up to a distance of 8",
        "use at least 4 buckets, and a distance of more than half of them",
    ),
    (
        "x: [8, 6]",
        "[{attention: 2, rope: {max_wavelength: 1000}, head_dim: 1048578}]",
        "a head has 1048578 features that are rotated, expected at most 65536",
        "",
    ),
    (
        INDICES,
        "[{gradient: [x, x]}]",
        "it reads s32[32,8], expected two of a floating dtype",
        "whole numbers have no gradient: name an `embedding` of them, or floats",
    ),
    (
        "x: [8], z: [8]",
        "[{dense: 4, inputs: x, name: y}, {gradient: [y, z]}]",
        "f32[32,4] does not depend on f32[32,8]: the gradient would be zeros",
        "name what the first is computed of, in the network that computes it",
    ),
    ("x: []", "[batch_norm]", "rank of x is 1, expected at least 2", ""),
    (
        IMAGE,
        "[{group_norm: 3}]",
        "4 channels do not split in 3 groups",
        "write `groups` that divide the channels, or -1: one for each",
    ),
    (
        IMAGE,
        "[{conv_transpose: 4, kernel_size: 3, strides: 2, output_padding: 2}]",
        "output_padding is 2, expected less than the strides, 2",
        "",
    ),
    (
        "x: [1, 1, 4]",
        "[{conv_transpose: 4, kernel_size: 2, padding: same, output_padding: 0}]",
        "places of the result is 0, expected at least 1",
        "",
    ),
    (
        "x: {shape: [8], dtype: int32, below: 10}",
        "[{embedding: 10, output_dim: 4, name: e}, {dense: 7, tied_to: e}]",
        "x f32[32,8,4] and the table f32[10,4] meet, expected [7, 4]",
        "a tied layer has as many units as the table has rows, and reads as many features as a row has",
    ),
    (
        VECTOR,
        "[{spatial_dropout: 0.5}]",
        "x f32[32,8] has rank 2, expected 3 or more: [batch, …, channels]",
        "write `dropout` for vectors",
    ),
    (
        SEQUENCE,
        "[{position_embedding: {max_length: 4}}]",
        "x has 8 positions, the table 4 rows",
        "make max_length at least as long as the sequences",
    ),
    (
        SEQUENCE,
        "[{max_pool: 2, data_format: channels_first}]",
        "`channels_first` is for images, expected `channels_last`",
        "",
    ),
    (
        SEQUENCE,
        "[{max_pool: [2, 3]}]",
        "pool_size is [2, 3], of 2 axes, and a sequence has 1",
        "write one number, or 1",
    ),
    (
        IMAGE,
        "[{max_pool: [2, 3, 4]}]",
        "pool_size is [2, 3, 4], of 3 axes, and an image has 2",
        "write one number, or 2",
    ),
    (
        "x: [8, 8, 8, 4]",
        "[{max_pool: [2, 3]}]",
        "pool_size is [2, 3], of 2 axes, and a volume has 3",
        "write one number, or 3",
    ),
    (SEQUENCE, "[{prelu: {shared_axes: [5]}}]", "a shared axis is 5, expected one of f32[32,8,4] after the batch", ""),
    (
        "x: [8, 4], s: [3]",
        "[{gru: {units: 4, initial_state: s}, inputs: x}]",
        "the state to start from is f32[32,3], expected [32, 4]",
        "make it of so many units with `{dense: 4}`",
    ),
];

#[test]
fn what_a_layer_cannot_read_is_a_whole_message() {
    let mut wrong = Vec::new();
    for (inputs, layers, message, help) in MESSAGES {
        let text = format!("kind: layers\ninputs: {{{inputs}}}\nlayers: {layers}\nloss: mean_squared_error\n");
        let Err(error) = document::from_str::<Model>("m.yaml", &text) else {
            wrong.push(format!("{layers} is taken"));
            continue;
        };
        let error = error.to_string();
        let first = error.lines().next().unwrap();
        let helps = error.lines().find_map(|line| line.strip_prefix("  help: ")).unwrap_or_default();
        if !(first.starts_with("m.yaml:3:") && first.ends_with(&format!(": {message}")) && helps == *help) {
            wrong.push(format!("{layers}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A program can say more than a document.
#[test]
fn a_network_of_a_program_is_checked_too() {
    let text = "inputs: {x: [8]}\nlayers: [{expression: '2 * x', name: e}, {add: [e, x]}, {dense: 4}]\n\
                outputs: {a: dense}\nloss: mean_squared_error\n";
    let config = document::from_str::<Network>("m.yaml", text).unwrap().config().clone();
    let mut twice = config.clone();
    twice.outputs.push(twice.outputs[0].clone());
    assert_eq!(Network::new(twice).unwrap_err().message, "there are two outputs `a`");
    let mut of_numbers = config;
    of_numbers.layers[0].kind = LayerKind::Expression(Expression { expression: "2 * 3".to_string() });
    let message = Network::new(of_numbers).unwrap_err().message;
    assert!(message.ends_with(": the formula reads no layer"), "{message}");
}

/// A kind that refuses an input of another rank says in the page's table which it reads. The dims of `permute` say it.
#[test]
fn the_table_of_kinds_says_of_what_each_is() {
    let page = include_str!("../../docs/EXPERIMENTS.md");
    let table = page.split_once("\n### Kinds\n").unwrap().1.split_once("\n\n`lstm`").unwrap().0;
    let cells: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let silent = |kind: &str| {
        let quoted = format!("`{kind}`");
        let cell = cells.iter().find(|cell| cell.contains(&quoted)).unwrap_or_else(|| panic!("{kind} has no row"));
        !["of ", "reads", "sequence"].iter().any(|word| cell.contains(word))
    };
    let with_rank = ROWS.iter().filter(|row| row.3 != "-" && row.0 != "permute").map(|row| row.0);
    let silent: Vec<&str> = with_rank.filter(|kind| silent(kind)).collect();
    assert!(silent.is_empty(), "{silent:?}");
}
