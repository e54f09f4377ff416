//! Every kind of layer written wrong in five ways: without what it needs, with a value of another type, of inputs of another rank,
//! with sizes that cannot be, with an unknown key. Each error has its line and names what was found and what was expected.

use bf16scope::document;
use bf16scope::models::Model;

/// A kind; its inputs, each `name: dims`; the layer as it should be; an input of another rank; the layer with a wrong type; with a
/// size that cannot be. `-` is a fault that the kind cannot have: it takes any rank, or no options, or no sizes.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const IMAGE: &str = "x: [8, 8, 4]";
const SEQUENCE: &str = "x: [8, 4]";
const VECTOR: &str = "x: [8]";
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
    ("lstm", SEQUENCE, "{lstm: 4}", VECTOR, "{lstm: x}", "{lstm: 4, initial_state: x}"),
    ("gru", SEQUENCE, "{gru: 4}", VECTOR, "{gru: x}", "{gru: 0}"),
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
