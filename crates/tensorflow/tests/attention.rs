//! Attention in words: what BERT's self-attention and Keras' become.

mod fixtures;
mod graphs;
mod run;

use bf16scope_tensorflow::{Graph, port};
use fixtures::unpacked;
use graphs::{encoder, read};

/// Learned positions, `MultiHeadAttention` and `LayerNormalization` at Keras' defaults.
#[test]
fn a_decoder_of_keras_has_words() {
    let ported = port(&Graph::read(&unpacked("keras_decoder.meta"), "keras_decoder.meta").unwrap());
    assert_eq!(ported.missing, []);
    let text = ported.experiment.unwrap();
    for line in [
        "{position_embedding: 10, ",
        "{attention: 3, use_causal_mask: true, dropout: 0.1, name: heads}",
        "{layer_norm: , epsilon: 0.001, name: norm}",
        "{dense: 5, name: scores}",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // Kernels have an axis of heads in both, and biases in Keras alone.
    let network = &ported.network;
    assert_eq!(network.variables["heads/query/kernel"], [12, 3, 4]);
    assert_eq!(network.names["heads/attention_output/kernel"], "heads/out/kernel");
    assert_eq!(network.layouts.get("heads/key/bias").map(String::as_str), Some("axes_of: kernel"));
    assert_eq!(network.layouts.get("heads/query/kernel"), None);
}

#[test]
fn attention_of_plain_ops_is_a_layer() {
    let ported = read(&encoder(0.5, -1e4));
    assert_eq!(ported.missing, []);
    assert_eq!(ported.variables.unmapped, [""; 0]);
    let text = ported.experiment.unwrap();
    let expected = "  inputs:
    x: [5, 12]
    input_mask: {shape: [5], dtype: int32}
  layers:
    - {attention: 3, dropout: 0.1, name: layer_0/attention/self, inputs: [x, x, input_mask]}
    - {add: [layer_0/attention/self, x], name: sum}
    - {layer_norm: , epsilon: 1e-12, name: norm}
    - {global_avg_pool: , name: pooled}
    - {dense: 3, name: classes}
";
    assert!(text.contains(expected), "{text}");
    let text = "a mask adds a large negative number to scores; here it makes weights exactly 0";
    assert!(ported.differs.iter().any(|note| note.text == text), "{:?}", ported.differs);
    // A checkpoint's matrices are ours with an axis of heads.
    let layouts = &ported.network.layouts;
    assert_eq!(layouts["layer_0/attention/self/key/kernel"], "joined: [[0], [1, 2]]");
    assert_eq!(layouts["layer_0/attention/output/dense/kernel"], "joined: [[0, 1], [2]]");
}

#[test]
fn attention_without_dropout_and_a_mask_is_a_layer_too() {
    let whole = encoder(0.5, -1e4);
    // Scores as they are.
    let bare = whole.replace(
        "\"masked\" op: \"AddV2\" input: \"scaled\" input: \"adder\"",
        "\"masked\" op: \"Identity\" input: \"scaled\"",
    );
    let bare = bare.replace("input: \"dropped\" input: \"value_heads\"", "input: \"weights\" input: \"value_heads\"");
    let ported = read(&bare);
    let text = ported.experiment.unwrap();
    assert!(text.contains("    - {attention: 3, name: layer_0/attention/self}\n"), "{text}");
    assert!(text.contains("  inputs:\n    x: [5, 12]\n  layers:\n"), "{text}");
}

/// Scores of another scale, and a mask that hides little, are no attention of ours.
#[test]
fn look_alikes_of_attention_have_no_word() {
    for graph in [encoder(0.3, -1e4), encoder(0.5, -2.0)] {
        let ported = read(&graph);
        assert_eq!(ported.experiment, None);
        let texts: Vec<&str> = ported.missing.iter().map(|note| note.text.as_str()).collect();
        assert!(texts.contains(&"`Transpose` of a layer has no word in `kind: layers`"), "{texts:?}");
    }
}
