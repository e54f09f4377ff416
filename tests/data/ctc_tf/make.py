"""Values and gradients of TensorFlow's CTC loss, for tests/networks/ctc.rs: TensorFlow 2.15.1 on a CPU, f32.

Repeated labels, a label of no class, one that fills all its steps, and one for which the steps are too few by nothing.
"""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(5)
steps, classes = 7, 5
labels = np.array([[1, 2, 2, 4], [3, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [4, 3, 2, 1]], np.int32)
logits = (2 * rng.normal(size=(len(labels), steps, classes))).astype(np.float32)
weights = rng.uniform(0.5, 1.5, len(labels)).astype(np.float32)
arrays = {"labels": labels, "logits": logits, "weights": weights}
for blank in (0, 4):
    written = labels if blank == 0 else np.where(labels == 0, 4, np.where(labels == 4, 0, labels)).astype(np.int32)
    x = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        lengths = (written != blank).sum(axis=1).astype(np.int32)
        each = tf.nn.ctc_loss(written, tf.transpose(x, [1, 0, 2]), lengths, [steps] * len(labels), blank_index=blank)
        loss = tf.reduce_sum(each * weights)
    arrays |= {f"labels{blank}": written, f"loss{blank}": each.numpy(), f"gradient{blank}": tape.gradient(loss, x).numpy()}
del arrays["labels"]
np.savez_compressed("ctc.npz", **arrays)
print({name: array.shape for name, array in arrays.items()}, arrays["loss0"], arrays["loss4"])
