"""BERT's pre-training step in TensorFlow's own operations (2.15.1, a CPU, f32), small and without dropout, for tests/training/bert.rs:
weights and examples, and the loss of ten steps of its optimizer (clipped Adam without bias correction, decoupled decay)."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(11)
N, LENGTH, WORDS, WIDTH, HEADS, INNER, MASKED = 8, 12, 60, 16, 2, 64, 3
SIZE = WIDTH // HEADS
V = {}


def variable(name, *dims):
    kind = name.rsplit("/", 1)[1]
    value = np.ones(dims) if kind == "gamma" else np.zeros(dims) if kind in ("beta", "bias") else rng.normal(0, 0.1, dims)
    V[name] = tf.Variable(value.astype("f4"))


for name, rows in (("words", WORDS), ("kinds", 2), ("position_embedding", LENGTH)):
    variable(f"{name}/embeddings", rows, WIDTH)
norms = ["embedded", "layer_norm"]
for block in ("encoder/block1", "encoder/block2"):
    for part in ("query", "key", "value"):
        variable(f"{block}/attention/heads/{part}/kernel", WIDTH, HEADS, SIZE)
        variable(f"{block}/attention/heads/{part}/bias", WIDTH)
    variable(f"{block}/attention/heads/out/kernel", HEADS, SIZE, WIDTH)
    variable(f"{block}/attention/heads/out/bias", WIDTH)
    variable(f"{block}/feed_forward/dense1/kernel", WIDTH, INNER)
    variable(f"{block}/feed_forward/dense1/bias", INNER)
    variable(f"{block}/feed_forward/dense2/kernel", INNER, WIDTH)
    variable(f"{block}/feed_forward/dense2/bias", WIDTH)
    norms += [f"{block}/attention/norm", f"{block}/feed_forward/norm"]
for name in norms:
    variable(f"{name}/gamma", WIDTH)
    variable(f"{name}/beta", WIDTH)
for name, units in (("pooler", WIDTH), ("next_sentence", 2), ("transform", WIDTH)):
    variable(f"{name}/kernel", WIDTH, units)
    variable(f"{name}/bias", units)
variable("masked_words/bias", WORDS)

lengths = rng.integers(7, LENGTH + 1, N)
tokens = np.where(np.arange(LENGTH) < lengths[:, None], rng.integers(1, WORDS, (N, LENGTH)), 0).astype("i4")
examples = {
    "tokens": tokens,
    "segments": (np.arange(LENGTH) >= lengths[:, None] // 2).astype("i4"),
    "positions": np.stack([rng.choice(n, MASKED, False) for n in lengths]).astype("i4"),
    "masked": rng.integers(1, WORDS, (N, MASKED)).astype("i4"),
    "weights": rng.choice([1.0, 1.0, 0.0], (N, MASKED)).astype("f4"),
    "is_next": rng.integers(0, 2, N).astype("i4"),
}


def norm(x, name):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, V[f"{name}/beta"], V[f"{name}/gamma"], 1e-12)


def dense(x, name):
    return x @ V[f"{name}/kernel"] + V[f"{name}/bias"]


def block(x, mask, name):
    def heads(part):
        bias = tf.reshape(V[f"{name}/attention/heads/{part}/bias"], [HEADS, SIZE])
        return tf.einsum("blw,whs->bhls", x, V[f"{name}/attention/heads/{part}/kernel"]) + bias[:, None]

    scores = tf.einsum("bhqs,bhks->bhqk", heads("query"), heads("key")) / np.sqrt(SIZE).astype("f4")
    weights = tf.nn.softmax(scores + (1.0 - mask)[:, None, None, :] * -10000.0)
    seen = tf.einsum("bhqk,bhks->bhqs", weights, heads("value"))
    out = tf.einsum("bhqs,hsw->bqw", seen, V[f"{name}/attention/heads/out/kernel"]) + V[f"{name}/attention/heads/out/bias"]
    x = norm(x + out, f"{name}/attention/norm")
    inner = tf.nn.gelu(dense(x, f"{name}/feed_forward/dense1"))
    return norm(x + dense(inner, f"{name}/feed_forward/dense2"), f"{name}/feed_forward/norm")


def losses():
    x = tf.gather(V["words/embeddings"], tokens) + tf.gather(V["kinds/embeddings"], examples["segments"])
    x = norm(x + V["position_embedding/embeddings"], "embedded")
    mask = tf.cast(tokens != 0, tf.float32)
    for name in ("encoder/block1", "encoder/block2"):
        x = block(x, mask, name)
    pooled = tf.tanh(dense(x[:, 0], "pooler"))
    is_next = tf.nn.sparse_softmax_cross_entropy_with_logits(examples["is_next"], dense(pooled, "next_sentence"))
    words = tf.nn.gelu(dense(tf.gather(x, examples["positions"], batch_dims=1), "transform"))
    logits = tf.matmul(norm(words, "layer_norm"), V["words/embeddings"], transpose_b=True) + V["masked_words/bias"]
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(examples["masked"], logits) * examples["weights"]
    return tf.reduce_sum(each) / (examples["weights"].sum() + np.float32(1e-5)) + tf.reduce_mean(is_next)


start = {name: value.numpy() for name, value in V.items()}
variables = list(V.items())
moments = {name: (np.zeros(value.shape, "f4"), np.zeros(value.shape, "f4")) for name, value in variables}
history = []
for _ in range(10):
    with tf.GradientTape() as tape:
        loss = losses()
    history.append(loss.numpy())
    gradients = tape.gradient(loss, [value for _, value in variables])
    gradients, _ = tf.clip_by_global_norm([tf.convert_to_tensor(g) for g in gradients], 1.0)
    for (name, value), gradient in zip(variables, gradients):
        m, v = moments[name]
        m, v = np.float32(0.9) * m + np.float32(0.1) * gradient, np.float32(0.999) * v + np.float32(0.001) * gradient**2
        moments[name] = m, v
        update = m / (tf.sqrt(v) + 1e-6)
        if name.rsplit("/", 1)[1] not in ("bias", "gamma", "beta"):
            update += 0.01 * value
        value.assign_sub(0.002 * update)
np.savez_compressed("weights.npz", **start)
np.savez_compressed("examples.npz", **examples)
np.savez("losses.npz", losses=np.array(history, "f4"))
print(history)
