//! Losses of plain ops, as Keras and `tf.losses` trace them, and by hand.

mod fixtures;
mod run;

use bf16scope_tensorflow::{Graph, port};
use fixtures::unpacked;

/// Each loss stands for half a term of the graph's, and has its word, its numbers and its labels.
#[test]
fn losses_of_keras_have_words() {
    let ported = port(&Graph::read(&unpacked("losses.meta"), "losses.meta").unwrap());
    let missing: Vec<&str> = ported.missing.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(missing, [""; 0]);
    let mut heads: Vec<String> = ported
        .network
        .heads
        .iter()
        .map(|head| {
            let options: String = head.options.iter().map(|(option, value)| format!(" {option}={value}")).collect();
            format!("{}: {}{options} of {} by {}", head.output, head.loss, head.labels, head.weight)
        })
        .collect();
    heads.sort();
    assert_eq!(
        heads,
        [
            "cosine: cosine_similarity of cosine by 0.5",
            "cosine_distance: cosine_similarity of cosine_distance by 0.5",
            "divergence: kl_divergence of divergence by 0.5",
            "divergence_by_hand: kl_divergence of divergence_by_hand by 0.5",
            "focal: sigmoid_focal_cross_entropy gamma=2.0 alpha=null of focal by 0.5",
            "focal_balanced: sigmoid_focal_cross_entropy gamma=1.5 alpha=0.3 of focal_balanced by 0.5",
            "focal_by_hand: sigmoid_focal_cross_entropy gamma=1.5 alpha=0.25 of focal_by_hand by 0.5",
            "focal_of_classes: sparse_softmax_focal_cross_entropy gamma=2.0 alpha=0.5 of focal_of_classes by 0.5",
            "focal_of_rows: softmax_focal_cross_entropy gamma=3.0 alpha=0.5 of focal_of_rows by 0.5",
            "hinge_of_rows: categorical_hinge of hinge_of_rows by 0.5",
            "logarithmic: mean_squared_logarithmic_error of logarithmic by 0.5",
            "percentage: mean_absolute_percentage_error of percentage by 0.5",
            "real: sigmoid_cross_entropy of 1 by 0.5",
        ]
    );
    let above = "the graph's loss is larger by 1.0 than `cosine_similarity` is here";
    assert!(ported.differs.iter().any(|note| note.text == above), "{:?}", ported.differs);
    // Labels that are all the same are a number.
    let experiment = ported.experiment.unwrap();
    assert!(experiment.contains("{sigmoid_cross_entropy: , output: real, labels: 1, weight: 0.5}"), "{experiment}");
    // A block of layers whose last one a loss alone reads would have a result that no layer reads.
    assert!(!experiment.contains("blocks:"), "{experiment}");
}
