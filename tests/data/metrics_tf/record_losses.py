"""Losses and metrics over 40 examples by Keras, for tests/networks/losses_tf.rs. See README.md.

usage: python record_losses.py losses.npz
"""
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import keras
import numpy as np
import tensorflow as tf

N, CLASSES = 40, 6
rng = np.random.default_rng(20261128)
logits = rng.uniform(-4.0, 4.0, (N, CLASSES)).astype(np.float32)
labels = rng.integers(0, CLASSES, N).astype(np.int32)
mixed = rng.dirichlet(np.ones(CLASSES), N).astype(np.float32)
scores = rng.uniform(-2.0, 2.0, (N, 2)).astype(np.float32)
answers = (scores + rng.normal(size=scores.shape) > 0.0).astype(np.float32)
targets = (scores + 0.5 * rng.normal(size=scores.shape)).astype(np.float32)
weights = rng.choice([0.0, 1.0, 2.5], N).astype(np.float32)
arrays = {f"in/{name}": value for name, value in dict(
    logits=logits, labels=labels, mixed=mixed, scores=scores, answers=answers, targets=targets, weights=weights).items()}

k = keras.losses
arrays["log_cosh"] = k.LogCosh()(targets, scores)
arrays["cosine_similarity"] = k.CosineSimilarity()(targets, scores)
arrays["hinge"] = k.Hinge()(answers, scores)
arrays["squared_hinge"] = k.SquaredHinge()(answers, scores)
one_hot = np.eye(CLASSES, dtype=np.float32)[labels]
arrays["categorical_hinge"] = k.CategoricalHinge()(one_hot, logits)
arrays["kl_divergence"] = k.KLDivergence()(mixed, tf.nn.softmax(logits))
arrays["mape"] = k.MeanAbsolutePercentageError()(targets, scores)
arrays["msle"] = k.MeanSquaredLogarithmicError()(targets, scores)
arrays["poisson"] = k.Poisson()(answers, np.abs(scores))
# Losses that Keras does not have: their formulas, in f64.
d = targets.astype(np.float64) - scores
arrays["quantile"] = np.maximum(0.9 * d, -0.1 * d).mean()
distances = scores.astype(np.float64)
arrays["contrastive"] = (answers * distances**2 + (1 - answers) * np.maximum(1.5 - distances, 0) ** 2).mean()
square = ((logits[:, None].astype(np.float64) - logits[None]) ** 2).sum(-1)
alike = labels[:, None] == labels[None]
each = [max(0.0, square[i][alike[i] & (np.arange(N) != i)].max(initial=0) - square[i][~alike[i]].min() + 2.0)
        if (alike[i].sum() > 1) else 0.0 for i in range(N)]
arrays["triplet"] = np.mean(each)
# BERT's masked language model: run_pretraining.py, get_masked_lm_output.
of_each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
arrays["masked"] = tf.reduce_sum(weights * of_each) / (tf.reduce_sum(weights) + 1e-5)

m = keras.metrics


def record(name, metric, truth, given):
    metric.update_state(truth, given)
    arrays[name] = np.float64(metric.result())


record("f1", m.F1Score(average="micro", threshold=0.5), answers, tf.sigmoid(scores).numpy())
record("macro_f1", m.F1Score(average="macro"), one_hot, logits)
record("r2", m.R2Score(), targets, scores)
record("cosine", m.CosineSimilarity(), targets, scores)
record("accuracy", m.CategoricalAccuracy(), mixed, logits)
record("top_3_accuracy", m.TopKCategoricalAccuracy(3), mixed, logits)
np.savez(sys.argv[1], **{name: np.asarray(value, None if name.startswith("in/") else np.float64) for name, value in arrays.items()})
