//! Features that Keras users expect: blocks that count repetitions, unused layers in blocks, Keras' names, parameters
//! without their dollar sign, dropout of whole channels.

use crate::run;
use bf16scope::document;
use bf16scope::graph::{Graph, gradients};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn::{Activation, DataFormat, masked_avg_pool, spatial_dropout};
use bf16scope::task::{Features, Mode};

pub fn read(text: &str) -> Result<Model, String> {
    document::from_str("m.yaml", &format!("kind: layers\n{text}")).map_err(|error| error.to_string())
}

/// Names and dims of a model's kernels.
fn kernels(text: &str) -> Vec<(String, Vec<i64>)> {
    let task = read(text).unwrap_or_else(|error| panic!("{error}")).task(0.0);
    let graph = Graph::new("kernels");
    let described = task.features();
    let features = Features::new(&graph, &described, 2, Mode::Predict);
    task.call(&graph.scope(), &features, Mode::Predict);
    let variables = graph.variables().into_iter().filter(|variable| variable.name.ends_with("/kernel"));
    variables.map(|variable| (variable.name, variable.dims)).collect()
}

const WAVES: &str = "inputs: {x: [16, 4]}
blocks:
  wave:
    parameters: {kernel: , channels: 4}
    layers:
      - {conv1d: $channels, kernel_size: $kernel, padding: causal, name: z}
      - {conv1d: 4, kernel_size: 1, name: skip}
      - {conv1d: 4, kernel_size: 1, inputs: z, name: r}
      - {add: [input, r]}
";

#[test]
fn each_repetition_has_its_own_parameters() {
    let rest = "layers: [{wave: $(2 ** index), repeats: 3, name: w}, {dense: 1}]\nloss: mean_squared_error\n";
    let sizes: Vec<i64> = kernels(&format!("{WAVES}{rest}"))
        .into_iter()
        .filter(|(name, _)| name.ends_with("/z/kernel"))
        .map(|it| it.1[0])
        .collect();
    assert_eq!(sizes, [1, 2, 4]);
}

/// The last residual of a WaveNet is not used, but its first kernels are.
#[test]
fn what_a_block_makes_beside_what_is_used_is_left_out() {
    let layers = "layers: [{wave: 2, name: w1}, {wave: 2, name: w2}, {add: [w1/skip, w2/skip]}, {dense: 1}]\n";
    let names: Vec<String> =
        kernels(&format!("{WAVES}{layers}loss: mean_squared_error\n")).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["w1/z/kernel", "w1/skip/kernel", "w1/r/kernel", "w2/z/kernel", "w2/skip/kernel", "dense/kernel"]
    );
    // A use whose layers are all unread is a mistake.
    let layers = "layers: [{wave: 2, name: w1}, {wave: 2, name: w2}, {dense: 1, inputs: w1}]\n";
    let error = read(&format!("{WAVES}{layers}loss: mean_squared_error\n")).unwrap_err();
    assert!(error.starts_with("m.yaml:7:9: unused layer `w2/z` (conv1d)"), "{error}");
}

#[test]
fn words_of_keras_and_names_of_parameters_have_a_remedy() {
    let error = |layer: &str| {
        let text = format!("{WAVES}layers: [{layer}, {{dense: 1}}]\nloss: mean_squared_error\n");
        read(&text).unwrap_err()
    };
    let bidirectional = error("{Bidirectional: {lstm: 4}}");
    assert!(bidirectional.ends_with("help: write `{lstm: 64, bidirectional: true}`, or `gru` so"), "{bidirectional}");
    let parameter =
        read(&format!("{}layers: [{{wave: 2}}]\nloss: mean_squared_error\n", WAVES.replace("$channels", "channels")))
            .unwrap_err();
    assert!(parameter.contains("found string \"channels\", expected a whole number of at least 1"), "{parameter}");
    let help = "help: `channels` is a parameter: its value is `$channels`, and that of a formula `$(2 * channels)`";
    assert!(parameter.ends_with(help), "{parameter}");
    let comma = error("{wave: $(max(2, 3)), name: w}");
    assert!(
        comma.ends_with("help: quote a formula with commas inside of `{…}` or `[…]`: `\"$(max(8, n))\"`"),
        "{comma}"
    );
}

#[test]
fn activations_are_layers_by_keras_names_too() {
    let network = |layer: &str| {
        let text = format!("inputs: {{x: [4]}}\nlayers: [{layer}, {{dense: 1}}]\nloss: mean_squared_error\n");
        read(&text).unwrap_or_else(|error| panic!("{layer}: {error}"))
    };
    for (keras, ours) in [
        ("ReLU", "relu"),
        ("ReLU6", "relu6"),
        ("LeakyReLU", "leaky_relu"),
        ("ELU", "elu"),
        ("SELU", "selu"),
        ("GELU", "gelu"),
        ("SiLU", "silu"),
        ("swish", "silu"),
        ("Softmax", "softmax"),
        ("LogSoftmax", "log_softmax"),
        ("HardSigmoid", "hard_sigmoid"),
        ("{ReLU: , name: r}", "{relu: , name: r}"),
        ("{activation: swish}", "{activation: silu}"),
    ] {
        assert_eq!(network(keras), network(ours), "{keras}");
    }
    // The slope of the layer without one is that of the activation.
    let slope = Activation::NEGATIVE_SLOPE;
    for layer in ["{leaky_relu: }", "{LeakyReLU: }", "{LeakyReLU: {}}"] {
        assert_eq!(network(layer), network(&format!("{{leaky_relu: {slope}}}")), "{layer}");
    }
}

#[test]
fn a_mask_that_is_described_is_read() {
    let model = |layers: &str| {
        read(&format!("inputs: {{x: [9, 4]}}\nlayers: [{layers}, flatten, {{dense: 1}}]\nloss: mean_squared_error\n"))
    };
    let error = |layers: &str| model(layers).unwrap_err();
    let attention = error("{attention: 2, mask: padding}");
    let first = "m.yaml:3:25: `mask: padding` of `attention`, which reads 1, expected 3: queries, memory and a mask\n";
    assert!(attention.starts_with(first), "{attention}");
    let help = "help: name the mask, such as a `masking` layer: `inputs: [x, x, mask]`; or leave `mask` out";
    assert!(attention.ends_with(help), "{attention}");
    let block = error("{transformer_block: 2, mask: padding, intermediate_dim: 8}");
    let first =
        "m.yaml:3:33: `mask: padding` of `transformer_block`, which reads 1, expected 2: a sequence and a mask\n";
    assert!(block.starts_with(first), "{block}");
    let masked = "{masking: , name: m}, {attention: 2, inputs: [x, x, m], mask: padding}";
    assert_eq!(model(masked).err(), None);
}

/// Keras' `Masking` passes on what it reads, so a list of its layers does not stand for the same network here.
#[test]
fn a_mask_is_read_by_name() {
    let model = |blocks: &str, layers: &str| {
        let rest = "loss: mean_squared_error\n";
        read(&format!(
            "inputs: {{ids: [9, 4]}}\n{blocks}layers: [{{Masking: 0, name: m}}, {layers}, {{dense: 1}}]\n{rest}"
        ))
    };
    let block = "blocks: {twice: {layers: [{dense: 4}, {dense: 4}]}}\n";
    for (blocks, layer, reader, written) in [
        ("", "{lstm: 2}", "lstm", "`inputs: [ids, m]`;"),
        ("", "global_avg_pool", "global_avg_pool", "`inputs: [ids, m]`;"),
        ("", "{attention: 2}", "attention", "`inputs: [ids, ids, m], mask: padding`;"),
        ("", "{transformer_block: 2, intermediate_dim: 8}", "transformer_block", "`inputs: [ids, m], mask: padding`;"),
        ("", "flatten", "flatten", "`inputs: ids`, and `inputs: [NAME, m]` at the `lstm` or `gru`"),
        ("", "{expression: 2 * x}", "expression", "`ids` or `m` in the place of `x`;"),
        (
            block,
            "{expression: 2 * x}, {twice: , inputs: ids}, flatten",
            "expression",
            "`ids` or `m` in the place of `x`;",
        ),
        (block, "twice", "twice", "`inputs: ids`, and `inputs: [NAME, m]`"),
        (block, "flatten, {twice: , inputs: ids}", "flatten", "`inputs: ids`, and `inputs: [NAME, m]`"),
    ] {
        let error = model(blocks, layer).unwrap_err();
        let message = format!(
            "layer `{reader}` names no `inputs`, and the layer before it is a mask: `m` is 1 where `ids` counts"
        );
        assert!(error.contains(&message), "{layer}: {error}");
        assert!(error.contains(&format!("help: write {written}")), "{layer}: {error}");
    }
    for layers in ["{lstm: 2, inputs: [ids, m]}", "{dense: 3, inputs: m}", "{expression: 1 - m}"] {
        assert_eq!(model("", layers).err(), None, "{layers}");
    }
}

#[test]
fn brackets_in_formulas_are_told_the_layers_for_them() {
    let error = |formula: &str| {
        let layers = format!("- {{expression: '{formula}'}}\n  - {{dense: 1}}");
        read(&format!("inputs: {{x: [4]}}\nlayers:\n  {layers}\nloss: mean_squared_error\n")).unwrap_err()
    };
    let list = error("x > [0.1, 0.5, 0.9]");
    let message = "in `x > [0.1, 0.5, 0.9]`, at character 5: expected a name, a number or `(`";
    assert!(list.starts_with("m.yaml:4:") && list.contains(message), "{list}");
    assert!(list.contains("`{expression: a > 0.1, name: b}`, and `{concat: [b, c]}`"), "{list}");
    let index = error("x[0] + 1");
    assert!(index.contains("expected an operator or the end, found `[`"), "{index}");
    assert!(index.contains("help: write a layer `{slice: [0, 1], axis: -1, inputs: a, name: b}`, and `b`"), "{index}");
    assert!(!error("2 * x +").contains("help: "));
}

#[test]
fn states_to_start_from_say_what_does_not_fit() {
    let error = |state: &str, layer: &str| {
        let text = format!("inputs: {{x: [16, 4], {state}}}\nlayers: [{layer}]\nloss: mean_squared_error\n");
        read(&text).unwrap_err()
    };
    let unknown = error("y: [4]", "{lstm: 4, inputs: x, initial_state: w}");
    assert!(unknown.contains("layer `lstm` starts from `w`, which is neither an input nor a layer"), "{unknown}");
    let size = error("z: [5]", "{gru: 4, inputs: x, initial_state: z}");
    assert!(size.contains("the state to start from is f32[32,5], expected [32, 4]"), "{size}");
    let number = error("y: [4]", "{lstm: 4, inputs: x, bidirectional: true, initial_state: y}");
    assert!(number.contains("1 states to start from, expected 2 or 4"), "{number}");
}

#[test]
fn spatial_dropout_leaves_out_whole_channels() {
    let g = Graph::training("dropout");
    let x = g.input("x", DType::F32, [4, 6, 8]);
    let y = spatial_dropout(&g.scope(), &x, "dropout", 0.5);
    let program = g.finish(&[("y", &y)]).unwrap();
    let results = run::run(&program, |name| match name {
        "x" => Literal::from_elements([4, 6, 8], &[3.0f32; 4 * 6 * 8]),
        _ => Literal::from_elements([2], &[7u64, 11]),
    });
    let y = run::f32s(&results[0]);
    let at = |example: usize, step: usize, channel: usize| y[(example * 6 + step) * 8 + channel];
    let mut n_dropped = 0;
    for (example, channel) in (0..4).flat_map(|example| (0..8).map(move |channel| (example, channel))) {
        let first = at(example, 0, channel);
        assert!(first == 0.0 || first == 6.0, "{first}");
        assert!((0..6).all(|step| at(example, step, channel) == first), "example {example}, channel {channel}");
        n_dropped += usize::from(first == 0.0);
    }
    assert!((4..28).contains(&n_dropped), "{n_dropped} of 32");
}

/// Steps of padding do not count in a mean, and a sequence of nothing else has none.
#[test]
fn a_mean_over_a_sequence_reads_a_mask() {
    let means = |dtype: DType, format: DataFormat| {
        let g = Graph::new("mean");
        let (x, mask) = (g.input("x", DType::F32, [3, 4, 2]), g.input("mask", DType::F32, [3, 4]));
        let x = if format == DataFormat::ChannelsLast { x } else { x.transpose(&[0, 2, 1]) };
        let y = masked_avg_pool(&x.cast(dtype), &mask.cast(dtype), format).cast(DType::F32);
        let results = run::run(&g.finish(&[("y", &y)]).unwrap(), |name| match name {
            "x" => Literal::from_elements([3, 4, 2], &std::array::from_fn::<f32, 24, _>(|at| at as f32)),
            _ => Literal::from_elements([3, 4], &[1f32, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        });
        run::f32s(&results[0])
    };
    for dtype in [DType::F32, DType::BF16] {
        for format in [DataFormat::ChannelsLast, DataFormat::ChannelsFirst] {
            assert_eq!(means(dtype, format), [1.0, 2.0, 0.0, 0.0, 20.0, 21.0], "{dtype} {format:?}");
        }
    }
    let model = |inputs: &str, layers: &str| {
        read(&format!("inputs: {{{inputs}}}\nlayers: [{layers}, {{dense: 1}}]\nloss: mean_squared_error\n"))
    };
    let masked = "{masking: , name: m}, {GlobalAveragePooling1D: , inputs: [x, m]}";
    assert_eq!(model("x: [9, 4]", masked).err(), None);
    let image = model("x: [9, 4, 4], m: [9]", "{global_avg_pool: , inputs: [x, m]}").unwrap_err();
    let message = "mask f32[32,9] is not of x f32[32,9,4,4], expected [batch, steps] of a sequence";
    assert!(image.contains(message), "{image}");
    // Keras hands a mask on through layers that do not look at it.
    let dense = model("x: [9, 4]", "{masking: , name: m}, {dense: 4, inputs: [x, m]}").unwrap_err();
    assert!(dense.contains("layer `dense` (dense) reads 2, expected one"), "{dense}");
    let help = "help: `dense` reads no mask: leave `m` out, and name it at the layers that read one: `lstm`, `gru`, \
                `simple_rnn`, `attention`, `transformer_block`, `llama_block`, `global_avg_pool`";
    assert!(dense.contains(help), "{dense}");
    let of_input = model("x: [9, 4], padding_mask: [9]", "{dense: 4, inputs: [x, padding_mask]}").unwrap_err();
    assert!(of_input.contains("help: `dense` reads no mask: leave `padding_mask` out, and name it at"), "{of_input}");
    // A mask is not joined with what it masks.
    let masked = "{masking: , inputs: [x], name: m}, {lstm: 4, inputs: [x, y, m]}";
    let lstm = model("x: [9, 4], y: [9, 4]", masked).unwrap_err();
    assert!(lstm.contains("layer `lstm` (lstm) reads 3, expected one or two"), "{lstm}");
    let help = "help: `lstm` reads a sequence and a mask: keep `m`, and join the others first, with `concat` or `add`";
    assert!(lstm.contains(help), "{lstm}");
}

/// The gradient of `x · stop_gradient(x)` is x, and not 2x.
#[test]
fn a_gradient_stops_where_a_formula_says() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let g = Graph::new("stopped");
        let x = g.input("x", DType::F32, [3]);
        let factor = x.cast(dtype);
        let loss = (&factor * factor.stop_gradient()).cast(DType::F32).sum(&[0]);
        let gradient = gradients(&loss, [&x]).unwrap().remove(0);
        let program = g.finish(&[("loss", &loss), ("gradient", &gradient)]).unwrap();
        let results = run::run(&program, |_| Literal::from_elements([3], &[1f32, -2.0, 3.0]));
        assert_eq!(run::f32s(&results[0]), [14.0], "{dtype}");
        assert_eq!(run::f32s(&results[1]), [1.0, -2.0, 3.0], "{dtype}");
    }
    // Straight through: the sign forward, and x's own gradient back.
    let text = "inputs: {v: [4]}\nlayers: [{dense: 3}, {expression: 'x + stop_gradient(sign(x) - x)'}]\nloss: hinge\n";
    assert_eq!(read(text).err(), None);
    let layer = "inputs: {v: [4]}\nlayers: [{dense: 3}, {stop_gradient: }]\nloss: hinge\n";
    let error = read(layer).unwrap_err();
    assert!(error.ends_with("help: write `{expression: \"stop_gradient(x)\"}`"), "{error}");
}

/// Options of Keras' layers that have another form here: the error says which.
#[test]
fn options_of_keras_layers_are_told_their_equivalent() {
    let help = |layer: &str| {
        let text = format!("inputs: {{x: [8, 4]}}\nlayers:\n  - {layer}\n  - {{dense: 1}}\nloss: mean_squared_error\n");
        let error = read(&text).unwrap_err();
        assert!(error.starts_with("m.yaml:4:"), "{layer}: {error}");
        error.split("help: ").nth(1).unwrap_or_else(|| panic!("{layer}: {error}")).to_string()
    };
    for (layer, expected) in [
        ("{LSTM: {units: 4, dropout: 0.2}}", "write a `dropout` layer before it"),
        ("{gru: 4, reset_after: true}", "it is Keras' with `reset_after: true`, the default there: leave it out"),
        ("{gru: 4, bidirectional: true, merge_mode: sum}", "both directions are put behind one another: "),
        ("{MultiHeadAttention: {num_heads: 2, key_dim: 4}}", "it is called `head_dim`"),
        ("{layer_norm: , axis: -1}", "it is of the last axis, Keras' default"),
        (
            "{GlobalAveragePooling1D: {keepdims: true}}",
            "write `{reduce: mean, axis: 1, keepdims: true}` of a sequence, and `axis: [1, 2]` of an image; `reduce` reads \
             no mask: with one, leave it out, and write `{reshape: [1, -1]}` after the pool",
        ),
        (
            "{GlobalMaxPooling1D: {keepdims: true}}",
            "write `{reduce: max, axis: 1, keepdims: true}` of a sequence, and ",
        ),
        ("{ReLU: {max_value: 6}}", "write `relu6`, or "),
        ("{dense: 4, input_shape: [8]}", "the dims of what the network reads stand in its `inputs`"),
        ("{RandomFlip: horizontal}", "write `augment: {flip: true}` under `data`"),
        ("{CategoryEncoding: 5}", "write `{one_hot: 5}` for `output_mode: one_hot`, and `{reduce: max, axis: 1}`"),
        ("{Attention: {use_scale: true}}", "Keras' `Attention` has no kernels: write `{dot: [q, k], axes: [2, 2]}`"),
        ("{TimeDistributed: {Dense: 2}}", "layers of the last axis work on every step: leave it out"),
        (
            "{SpectralNormalization: {dense: 4}}",
            "write `spectral_norm: true` beside the options of the layer, such as ",
        ),
        (
            "{spectral_norm: {dense: 4}}",
            "write it beside the options of the layer, such as `{dense: 64, spectral_norm: ",
        ),
        (
            "{gradient_penalty: 10}",
            "write `{gradient: [score, x], name: slope}`, an `expression` of the norm, such as ",
        ),
        ("{Hardtanh: }", "write `{expression: \"clip(x, -1, 1)\"}`"),
        ("{median: 1}", "of 5 numbers: `sort`, and `{slice: [2, 3], axis: -1}` of it"),
        ("{cumprod: 1}", "of numbers above 0: `{expression: log(x)}`, `cumsum`, "),
        ("{EmbeddingBag: 10}", "write `embedding`, and `{reduce: mean, axis: 1}` of it"),
        ("{FFT2D: }", "write `{fft: real, axis: [1, 2]}`, the axes of an example from 1"),
        ("{stft: 256}", "cut the signal into windows, `{reshape: [60, 256]}`, and write `{rfft: abs}` of them"),
        ("{GradientTape: x}", "write `{gradient: [y, x]}`"),
        ("{LocallyConnected1D: 4}", "no layer has a kernel for each place: write `conv`, or `flatten` and `dense`"),
        ("{matmul: [x, x]}", "write `{dot: [a, b], axes: [2, 1]}`"),
        ("{argsort: 1}", "write `{sort: , name: s}`, and read `s.indices`"),
        ("{LayerScale: 4}", "write `{variable: [8], initializer: {constant: 1.0e-6}, name: s}`"),
        ("{PixelShuffle: 2}", "of 2 and `[4, 4, 12]`: `{reshape: [4, 4, 2, 2, 3]}`, `{permute: [1, 3, 2, 4, 5]}`"),
        ("{DepthwiseConv1D: 3}", "write `{conv1d: 8, kernel_size: 3, groups: 8}`, of 8 channels"),
        ("{GroupQueryAttention: {num_query_heads: 8}}", "write `{attention: 8, num_key_value_heads: 2}`"),
        ("{AdaptiveAvgPool2d: 1}", "write `global_avg_pool`"),
        ("{RandomCrop: 8}", "write `augment: {translation: 0.1}` under `data`"),
        ("{MixUp: 0.2}", "write `augment: {mixup: 0.2}` under `data`"),
        ("{dense: 4, max_norm: 3}", "write `kernel_constraint: {max_norm: 3}`, or `bias_constraint`, …"),
        ("{dense: 4, l2: 0.01}", "write `kernel_regularizer: {l2: 1.0e-4}`, or `weight_decay` under `train`"),
        ("{dense: 4, in_features: 4}", "it is the size of what the layer reads: leave it out"),
        ("{dense: , out_features: 4}", "it is called `units`"),
        ("{dense: 4, bias: false}", "it is called `use_bias`"),
        ("{conv1d: 4, kernel: 3}", "it is called `kernel_size`"),
        ("{conv1d: , out_channels: 4, kernel_size: 3}", "it is called `filters`"),
        ("{max_pool: 2, stride: 2}", "it is called `strides`"),
        ("{batch_norm: , eps: 0.1}", "it is called `epsilon`"),
        ("{batch_norm: , affine: false}", "write `center: false, scale: false`"),
        (
            "{batch_norm: , training: false}",
            "statistics of the batch in training, running ones else; `trainable: false`",
        ),
        ("{dropout: , p: 0.1}", "it is called `rate`: the share that is dropped"),
        ("{lstm: , hidden_size: 4}", "it is called `units`"),
        ("{lstm: 4, num_layers: 2}", "write one layer after another, with `return_sequences: true` but for the last"),
        ("{attention: , nhead: 2}", "it is called `num_heads`"),
        ("{transformer_block: 2, dim_feedforward: 8}", "it is called `intermediate_dim`"),
        ("{layer_norm: , activation: relu}", "write the activation as a layer of its own after it"),
        ("{reduce: mean, dim: 1}", "it is called `axis`; the batch is axis 0"),
        // A name that Keras does not have either is told as before.
        ("{dense: 4, unitz: 3}", "did you mean `units`?"),
    ] {
        assert!(help(layer).starts_with(expected), "{layer}: {}", help(layer));
    }
    // A kind without the key is told no other name of it.
    let text = "inputs: {x: [8, 4]}\nlayers: [{batch_norm: , bias: false}]\nloss: mean_squared_error\n";
    assert!(!read(text).unwrap_err().contains("use_bias"));
}

/// Keras' second names of layers are understood as its first.
#[test]
fn second_names_of_keras_layers_are_read() {
    let kernels_of = |conv: &str, pool: &str| {
        kernels(&format!(
            "inputs: {{x: [8, 8, 3]}}\nlayers: [{{{conv}: 4, kernel_size: 3}}, {{{pool}: 2}}, GlobalAvgPool2D, \
             {{dense: 2}}]\nloss: mean_squared_error\n"
        ))
    };
    let ours = kernels_of("conv", "max_pool");
    assert_eq!((kernels_of("Convolution2D", "MaxPool2D"), ours.len()), (ours.clone(), 2));
}

/// Options of Keras' losses and metrics, and their forms by output.
#[test]
fn options_of_keras_losses_and_metrics_are_told_their_equivalent() {
    let help = |objectives: &str| {
        let text = format!("inputs: {{x: [8]}}\nlayers: [{{dense: 3}}]\n{objectives}\n");
        let error = read(&text).unwrap_err();
        error.split("help: ").nth(1).unwrap_or_else(|| panic!("{objectives}: {error}")).to_string()
    };
    for (objectives, expected) in [
        ("loss: {sparse_softmax_cross_entropy: {from_logits: true}}", "cross entropies and their metrics read logits"),
        ("loss: {sparse_softmax_cross_entropy: , ignore_class: 0}", "write `example_weights: NAME`, a feature"),
        ("loss: sparse_softmax_cross_entropy\nmetrics: [{mean_iou: {num_classes: 3}}]", "there are as many classes as"),
        ("loss: sigmoid_cross_entropy\nmetrics: [{precision: {thresholds: 0.5}}]", "an answer is yes where its logit"),
        // A name that Keras does not have either is told as before.
        ("loss: {mean_squared_error: , weigth: 2}", "did you mean `weight`?"),
        ("loss: mean_squared_error\nmetrics: [rmse]", "did you mean `root_mean_squared_error`?"),
        ("loss: {dense: mse}", "a loss of an output is an item of a list: `[{mean_squared_error: , output: dense}]`"),
        (
            "loss: mean_squared_error\nmetrics: {dense: [mae]}",
            "a metric of an output is an item of a list: `[{mean_absolute_error: , output: dense}]`",
        ),
    ] {
        assert!(help(objectives).starts_with(expected), "{objectives}: {}", help(objectives));
    }
}

/// `categorical_hinge` judges scores of classes by one-hot labels: their class is the largest element, as in Keras.
#[test]
fn one_hot_labels_of_a_hinge_have_an_accuracy() {
    let rest = "layers: [{dense: 3}]\nloss: categorical_hinge\nmetrics: [accuracy, {top_k: 2}]\n";
    read(&format!("inputs: {{x: [4]}}\nlabels: {{labels: [3]}}\n{rest}")).unwrap_or_else(|error| panic!("{error}"));
    // Independent answers have no class.
    let error =
        read(&format!("inputs: {{x: [4]}}\nlabels: {{labels: [3]}}\n{}", rest.replace("categorical", "squared")));
    let error = error.unwrap_err();
    assert!(error.contains("metric `accuracy` judges `dense` by `labels`"), "{error}");
}
