//! Expansion of blocks: names of variables, towers that share, tied tables, and errors.

use crate::document;
use crate::models::Model;
use crate::task::{Features, Mode};
use expect_test::{Expect, expect};

fn model(text: &str) -> Model {
    document::from_str("m.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

/// Names and dims of a network's variables.
fn variables(text: &str) -> String {
    let task = model(text).task(0.0);
    let graph = crate::graph::Graph::training("g");
    let described = task.features();
    let features = Features::new(&graph, &described, 2, Mode::Train);
    task.call(&graph.scope(), &features, Mode::Train);
    let variables = graph.variables().into_iter().map(|variable| format!("{} {:?}\n", variable.name, variable.dims));
    variables.collect()
}

fn wrong(text: &str, expected: Expect) {
    expected.assert_eq(&document::from_str::<Model>("m.yaml", text).unwrap_err().to_string());
}

#[test]
fn a_block_is_repeated_with_its_parameters() {
    let text = "\
kind: layers
inputs: {image: [16, 16, 3]}
parameters: {width: 4}
blocks:
  conv_bn:
    parameters: {filters: , kernel: 3, strides: 1}
    layers:
      - {conv: $filters, kernel_size: $kernel, strides: $strides, padding: same, use_bias: false}
      - batch_norm
      - relu
  residual:
    parameters: [filters]
    layers:
      - {conv_bn: $(filters // 2), kernel: 1, name: 'reduce_$index'}
      - {conv_bn: $filters}
      - {add: [input, conv_bn]}
layers:
  - {conv_bn: $(2 * width), strides: 2, name: stem}
  - {residual: 8, repeats: 2}
  - {residual: 8, name: last}
  - global_avg_pool
  - {dense: 10}
loss: sparse_softmax_cross_entropy
";
    expect![[r#"
        stem/conv/kernel [3, 3, 3, 8]
        stem/batch_norm/gamma [8]
        stem/batch_norm/beta [8]
        stem/batch_norm/moving_mean [8]
        stem/batch_norm/moving_variance [8]
        residual/block1/reduce_0/conv/kernel [1, 1, 8, 4]
        residual/block1/reduce_0/batch_norm/gamma [4]
        residual/block1/reduce_0/batch_norm/beta [4]
        residual/block1/reduce_0/batch_norm/moving_mean [4]
        residual/block1/reduce_0/batch_norm/moving_variance [4]
        residual/block1/conv_bn/conv/kernel [3, 3, 4, 8]
        residual/block1/conv_bn/batch_norm/gamma [8]
        residual/block1/conv_bn/batch_norm/beta [8]
        residual/block1/conv_bn/batch_norm/moving_mean [8]
        residual/block1/conv_bn/batch_norm/moving_variance [8]
        residual/block2/reduce_1/conv/kernel [1, 1, 8, 4]
        residual/block2/reduce_1/batch_norm/gamma [4]
        residual/block2/reduce_1/batch_norm/beta [4]
        residual/block2/reduce_1/batch_norm/moving_mean [4]
        residual/block2/reduce_1/batch_norm/moving_variance [4]
        residual/block2/conv_bn/conv/kernel [3, 3, 4, 8]
        residual/block2/conv_bn/batch_norm/gamma [8]
        residual/block2/conv_bn/batch_norm/beta [8]
        residual/block2/conv_bn/batch_norm/moving_mean [8]
        residual/block2/conv_bn/batch_norm/moving_variance [8]
        last/reduce_0/conv/kernel [1, 1, 8, 4]
        last/reduce_0/batch_norm/gamma [4]
        last/reduce_0/batch_norm/beta [4]
        last/reduce_0/batch_norm/moving_mean [4]
        last/reduce_0/batch_norm/moving_variance [4]
        last/conv_bn/conv/kernel [3, 3, 4, 8]
        last/conv_bn/batch_norm/gamma [8]
        last/conv_bn/batch_norm/beta [8]
        last/conv_bn/batch_norm/moving_mean [8]
        last/conv_bn/batch_norm/moving_variance [8]
        dense/kernel [8, 10]
        dense/bias [10]
    "#]]
    .assert_eq(&variables(text));
    // A checkpoint stores the expanded list, which can be read again.
    let written = serde_yaml::to_string(&model(text)).unwrap();
    assert_eq!(model(&written), model(text));
}

#[test]
fn a_name_after_a_slash_is_the_networks_own() {
    let text = "\
kind: layers
inputs: {x: [8]}
blocks:
  step:
    parameters: [n]
    layers:
      - {dense: 8, use_bias: false, name: '/dense_$n'}
      - {relu: , name: after}
      - {dense: 8, use_bias: false, name: '/dense_$(n + 1)'}
      - {add: [after, '/dense_$(n + 1)', '/dense_$n']}
  pair:
    parameters: [n]
    layers: [{step: $n}, {step: $(n + 2)}]
layers:
  - {step: , n: $(2 * index), repeats: 2}
  - {pair: 4}
  - {dense: 1, use_bias: false, name: head, inputs: dense_2}
  - {dense: 1, use_bias: false, name: other, inputs: pair}
  - {add: [head, other]}
loss: mean_squared_error
";
    let kernels: String = (0..8).map(|n| format!("dense_{n}/kernel [8, 8]\n")).collect();
    assert_eq!(variables(text), kernels + "head/kernel [8, 1]\nother/kernel [8, 1]\n");
    let written = serde_yaml::to_string(&model(text)).unwrap();
    assert_eq!(model(&written), model(text));
    // Uses of one name are two layers of it.
    wrong(
        &text.replace("$(2 * index)", "$index"),
        expect![[r#"
        m.yaml:7:9: another layer or input is called `dense_1`, too
          7 |       - {dense: 8, use_bias: false, name: '/dense_$n'}
            |         ^^^^^^
          help: give one of them another name"#]],
    );
}

#[test]
fn towers_share_their_variables() {
    let text = "\
kind: layers
inputs: {left: [8], right: [8]}
labels: {same: []}
blocks:
  tower: [{dense: 16, activation: relu}, {dense: 4}]
layers:
  - {tower: , inputs: left, name: a}
  - {share: a, inputs: right, name: b}
  - {expression: 'square(a - b)'}
  - {dense: 1, name: head}
  - {reshape: []}
loss: {sigmoid_cross_entropy: , labels: same}
";
    expect![[r#"
        a/dense/kernel [8, 16]
        a/dense/bias [16]
        a/dense_1/kernel [16, 4]
        a/dense_1/bias [4]
        head/kernel [4, 1]
        head/bias [1]
    "#]]
    .assert_eq(&variables(text));
}

#[test]
fn a_layer_is_applied_again_and_a_table_is_tied() {
    let text = "\
kind: layers
inputs: {tokens: {shape: [6], dtype: int32}}
layers:
  - {embedding: {input_dim: 50, output_dim: 8}, name: table}
  - {dense: 8, name: mix, kernel_regularizer: {l2: 0.5}}
  - {share: mix}
  - {dense: 50, tied_to: table, dtype: float32}
loss: sparse_softmax_cross_entropy
";
    expect![[r#"
        table/embeddings [50, 8]
        mix/kernel [8, 8]
        mix/bias [8]
        dense/bias [50]
    "#]]
    .assert_eq(&variables(text));
}

#[test]
fn wrong_blocks_say_where() {
    let with = |blocks: &str, layers: &str| {
        format!("kind: layers\ninputs: {{x: [8]}}\nblocks: {blocks}\nlayers: {layers}\nloss: mean_squared_error\n")
    };
    wrong(
        &with("{part: {parameters: [units], layers: [{dense: $units}]}}", "[part]"),
        expect![[r#"
        m.yaml:4:10: block `part` is used without `units`
          4 | layers: [part]
            |          ^^^^
          help: write `{part: , units: …}`, or give it a value under `parameters`"#]],
    );
    wrong(
        &with("{part: {parameters: [units], layers: [{dense: $unit}]}}", "[{part: 3}]"),
        expect![[r#"
        m.yaml:3:55: there is no parameter `$unit`, did you mean `$units`?
          3 | blocks: {part: {parameters: [units], layers: [{dense: $unit}]}}
            |                                                       ^^^^^
          help: a block's layers have its parameters as `$name` or `$(2 * name)`; `$$` is a dollar sign"#]],
    );
    wrong(
        &with("{part: {parameters: [units], layers: [{dense: $units}]}}", "[{part: 3, width: 4}]"),
        expect![[r#"
        m.yaml:4:20: unknown key `width` of block `part`, expected one of units, repeats, name, inputs, when, dtype, trainable
          4 | layers: [{part: 3, width: 4}]
            |                    ^^^^^"#]],
    );
    wrong(
        &with("{part: [{dense: 3}]}", "[{part: 3}]"),
        expect![[r#"
        m.yaml:4:17: found integer `3`, expected nothing: block `part` has no parameters
          4 | layers: [{part: 3}]
            |                 ^"#]],
    );
    wrong(
        &with("{part: [part]}", "[part]"),
        expect![[r#"
        m.yaml:3:17: block `part` is inside itself, or 32 blocks stand inside one another
          3 | blocks: {part: [part]}
            |                 ^^^^"#]],
    );
    wrong(
        &with("{dense: [relu]}", "[dense]"),
        expect![[r#"
        m.yaml:3:10: a block is called `dense`, as a kind of layer (`dense`) is
          3 | blocks: {dense: [relu]}
            |          ^^^^^
          help: give the block another name"#]],
    );
    wrong(
        &with("{part: [{dense: 3}, {add: [input, dense]}]}", "[part]"),
        expect![[r#"
        m.yaml:3:29: layer `part/add` (add) reads `x` f32[batch, 8] and `part/dense` f32[batch, 3]: f32[32,8] and f32[32,3] meet, expected equal shapes, or sizes of 1
          3 | blocks: {part: [{dense: 3}, {add: [input, dense]}]}
            |                             ^^^^"#]],
    );
    wrong(
        &with("{part: {layers: [{dense: 3}], output: x}}", "[part]"),
        expect![[r#"
        m.yaml:3:47: block `part` has no layer `x`, expected one of dense
          3 | blocks: {part: {layers: [{dense: 3}], output: x}}
            |                                               ^"#]],
    );
    wrong(
        &with("{part: {inputs: [a, b], layers: [{add: [a, b]}]}}", "[part]"),
        expect![[r#"
        m.yaml:4:10: `part` (block `part`) reads 1, expected 2
          4 | layers: [part]
            |          ^^^^
          help: name them: `inputs: [a, b]`"#]],
    );
    wrong(
        &with("{part: [{dense: 3}]}", "[prat]"),
        expect![[r#"
        m.yaml:4:10: there is no layer and no block `prat`
          4 | layers: [prat]
            |          ^^^^
          help: did you mean `part`?"#]],
    );
    wrong(
        &with("{part: [{dense: 3}]}", "[{part: , repeats: 0}]"),
        expect![[r#"
        m.yaml:4:28: found integer `0`, expected a whole number from 1 to 1000
          4 | layers: [{part: , repeats: 0}]
            |                            ^"#]],
    );
    wrong(
        &with("{part: [{dense: 3}]}", "[part, {share: prt}]"),
        expect![[r#"
        m.yaml:4:24: there is no layer and no block `prt` above
          4 | layers: [part, {share: prt}]
            |                        ^^^
          help: did you mean `part`?"#]],
    );
    wrong(
        &with("{part: [{dense: 3}]}", "[{part: , name: p}, {share: part}]"),
        expect![[r#"
        m.yaml:4:37: there is no layer and no block `part` above
          4 | layers: [{part: , name: p}, {share: part}]
            |                                     ^^^^
          help: `part` is a block: name one of its uses with `name: …`, and share that name"#]],
    );
    wrong(
        &with("{a: [{b: , repeats: 1000}], b: [{dense: 8}, relu]}", "[{a: , repeats: 1000}]"),
        expect![[r#"
        m.yaml:3:53: with its blocks written out the network has more than 12000 layers
          3 | blocks: {a: [{b: , repeats: 1000}], b: [{dense: 8}, relu]}
            |                                                     ^^^^"#]],
    );
}

#[test]
fn x_in_a_formula_is_the_layer_before_it_or_refused() {
    const LOSS: &str = "loss: mean_squared_error\n";
    let text = |input: &str| {
        format!(
            "kind: layers\ninputs: {{{input}: [2]}}\nlayers:\n- {{dense: 2, name: h}}\n- {{expression: x * 2, name: twice}}\n{LOSS}"
        )
    };
    model(&text("features"));
    wrong(
        &text("x"),
        expect![[r#"
            m.yaml:5:3: `x` in a formula is the layer before it, here `h`, and another input or layer is called `x`
              5 | - {expression: x * 2, name: twice}
                |   ^^^^^^^^^^^
              help: give that one another name, and write `h` or `x` for the layer before"#]],
    );
    // In a block, too.
    let block = "blocks: {twice: {layers: [{dense: 2, name: h}, {expression: x + h}]}}\n";
    let within = format!("kind: layers\ninputs: {{x: [2]}}\n{block}layers:\n- {{dense: 2, name: g}}\n- twice\n{LOSS}");
    wrong(
        &within,
        expect![[r#"
        m.yaml:3:48: `x` in a formula is the layer before it, here `twice/h`, and another input or layer is called `x`
          3 | blocks: {twice: {layers: [{dense: 2, name: h}, {expression: x + h}]}}
            |                                                ^^^^^^^^^^^
          help: give that one another name, and write `twice/h` or `x` for the layer before"#]],
    );
    // The first layer's is the input itself.
    model(&format!("kind: layers\ninputs: {{x: [2]}}\nlayers:\n- {{expression: x * 2}}\n- {{dense: 2}}\n{LOSS}"));
}
