//! Output names of ops with several outputs, as functions write them (`batch_norm:batch_mean:0`).
//!
//! Source: the ops' registrations in TensorFlow's `core/ops`.

/// Ops whose outputs have different names, one tensor each.
const NAMED: [(&str, &[&str]); 31] = [
    ("FusedBatchNorm", &["y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2"]),
    ("FusedBatchNormV2", &["y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2"]),
    (
        "FusedBatchNormV3",
        &["y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3"],
    ),
    ("FusedBatchNormGrad", &["x_backprop", "scale_backprop", "offset_backprop", "reserve_space_3", "reserve_space_4"]),
    (
        "FusedBatchNormGradV2",
        &["x_backprop", "scale_backprop", "offset_backprop", "reserve_space_3", "reserve_space_4"],
    ),
    (
        "FusedBatchNormGradV3",
        &["x_backprop", "scale_backprop", "offset_backprop", "reserve_space_4", "reserve_space_5"],
    ),
    ("SoftmaxCrossEntropyWithLogits", &["loss", "backprop"]),
    ("SparseSoftmaxCrossEntropyWithLogits", &["loss", "backprop"]),
    ("BroadcastGradientArgs", &["r0", "r1"]),
    ("TopK", &["values", "indices"]),
    ("TopKV2", &["values", "indices"]),
    ("Switch", &["output_false", "output_true"]),
    ("RefSwitch", &["output_false", "output_true"]),
    ("Merge", &["output", "value_index"]),
    ("RefMerge", &["output", "value_index"]),
    ("Unique", &["y", "idx"]),
    ("ListDiff", &["out", "idx"]),
    ("StatelessRandomGetKeyCounter", &["key", "counter"]),
    ("StatelessRandomGetKeyCounterAlg", &["key", "counter", "alg"]),
    ("TensorArrayV3", &["handle", "flow"]),
    ("TensorArrayConcatV3", &["value", "lengths"]),
    ("TensorArrayGradV3", &["grad_handle", "flow_out"]),
    ("TensorListPopBack", &["output_handle", "tensor"]),
    ("TensorListConcat", &["tensor", "lengths"]),
    ("TensorListConcatV2", &["tensor", "lengths"]),
    ("NonMaxSuppressionV4", &["selected_indices", "valid_outputs"]),
    ("NonMaxSuppressionV5", &["selected_indices", "selected_scores", "valid_outputs"]),
    ("CombinedNonMaxSuppression", &["nmsed_boxes", "nmsed_scores", "nmsed_classes", "valid_detections"]),
    ("UniformCandidateSampler", &["sampled_candidates", "true_expected_count", "sampled_expected_count"]),
    ("LogUniformCandidateSampler", &["sampled_candidates", "true_expected_count", "sampled_expected_count"]),
    ("ComputeAccidentalHits", &["indices", "ids", "weights"]),
];

/// The index of an op's first output with this name; 0 for ops with a single output name.
pub(crate) fn index_of_output(op: &str, name: &str) -> Option<usize> {
    match NAMED.iter().find(|(known, _)| *known == op) {
        Some((_, names)) => names.iter().position(|known| *known == name),
        None => Some(0),
    }
}
