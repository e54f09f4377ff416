"""Metrics over three batches by TensorFlow, for tests/networks/metrics_tf.rs. See README.md.

usage: python record.py metrics.npz
"""
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import tensorflow as tf

BATCHES, BATCH, CLASSES, ANSWERS = 3, 40, 6, 2
rng = np.random.default_rng(20261122)
arrays = {}
logits = rng.uniform(-4.0, 4.0, (BATCHES, BATCH, CLASSES)).astype(np.float32)
labels = rng.integers(0, CLASSES, (BATCHES, BATCH)).astype(np.int32)
scores = rng.uniform(-4.0, 4.0, (BATCHES, BATCH, ANSWERS)).astype(np.float32)
# A score that its label pulls up: the area is not that of chance.
answers = (scores + rng.normal(size=scores.shape) * 3.0 > 0.0).astype(np.float32)
arrays |= {"in/logits": logits, "in/labels": labels, "in/scores": scores, "in/answers": answers}


def record(name, metric, given, truth):
    """The value after each batch."""
    values = []
    for batch in range(BATCHES):
        metric.update_state(truth[batch], given[batch])
        values.append(np.float64(metric.result()))
    arrays[name] = np.array(values)


m = keras.metrics
record("accuracy", m.SparseCategoricalAccuracy(), logits, labels)
record("top_3_accuracy", m.SparseTopKCategoricalAccuracy(3), logits, labels)
record("mean_iou", m.MeanIoU(CLASSES), logits.argmax(-1), labels)
record("auc", m.AUC(from_logits=True), scores, answers)
record("auc_50", m.AUC(50, from_logits=True), scores, answers)
probabilities = tf.sigmoid(scores).numpy()
record("iou", m.BinaryIoU([1], 0.5), probabilities, answers)
record("binary_accuracy", m.BinaryAccuracy(), probabilities, answers)
record("precision", m.Precision(), probabilities, answers)
record("recall", m.Recall(), probabilities, answers)
record("mean_squared_error", m.MeanSquaredError(), scores, answers)
record("mean_absolute_error", m.MeanAbsoluteError(), scores, answers)

# Which are no classes of Keras: TensorFlow 1's, and e to the mean cross-entropy.
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    truth, said = (tf.compat.v1.placeholder(tf.int32, [BATCH]) for _ in range(2))
    value, update = tf.compat.v1.metrics.mean_per_class_accuracy(truth, said, CLASSES)
    session.run(tf.compat.v1.local_variables_initializer())
    values = []
    for batch in range(BATCHES):
        session.run(update, {truth: labels[batch], said: logits[batch].argmax(-1)})
        values.append(np.float64(session.run(value)))
    arrays["mean_per_class_accuracy"] = np.array(values)
losses = [tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels[b], logits=logits[b]) for b in range(BATCHES)]
arrays["perplexity"] = np.array(
    [np.float64(tf.exp(tf.reduce_mean(tf.concat(losses[: b + 1], 0)))) for b in range(BATCHES)])

np.savez_compressed(sys.argv[1], **arrays)
print("tensorflow", tf.__version__, "keras", keras.__version__, "numpy", np.__version__, len(arrays), "arrays")
