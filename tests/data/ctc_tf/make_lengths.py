"""Values and gradients of TensorFlow's CTC loss with lengths of labels and logits, for tests/networks/ctc.rs: TensorFlow 2.15.1
on a CPU, f32.

What stands behind a length is no blank and no silence: it must count for nothing. One label is of no class, one fills its steps.
"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(11)
steps, classes = 7, 5
labels = np.array([[1, 2, 2, 4], [3, 1, 1, 2], [4, 3, 2, 1], [1, 1, 2, 3], [4, 3, 2, 1]], np.int32)
label_lengths = np.array([4, 1, 0, 2, 3], np.int32)
logit_lengths = np.array([7, 5, 3, 3, 6], np.int32)
logits = (2 * rng.normal(size=(len(labels), steps, classes))).astype(np.float32)
weights = rng.uniform(0.5, 1.5, len(labels)).astype(np.float32)
arrays = {"labels": labels, "label_lengths": label_lengths, "logit_lengths": logit_lengths, "logits": logits, "weights": weights}
x = tf.constant(logits)
with tf.GradientTape() as tape:
    tape.watch(x)
    each = tf.nn.ctc_loss(labels, tf.transpose(x, [1, 0, 2]), label_lengths, logit_lengths, blank_index=0)
    loss = tf.reduce_sum(each * weights)
arrays |= {"loss": each.numpy(), "gradient": tape.gradient(loss, x).numpy()}
np.savez_compressed("lengths.npz", **arrays)
print({name: array.shape for name, array in arrays.items()}, arrays["loss"])
