"""Steps of Lion, Nadam, Adamax and AMSGrad by Keras, with the start and gradients of optimizers.npz, for tests/training/optim_tf.rs.

usage: python record_more.py optimizers.npz more.npz
"""
import os
import sys

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import keras
import numpy as np
import tensorflow as tf

RATE = 0.0625
given = np.load(sys.argv[1])
names = ["kernel", "bias"]
arrays = {}
for case, optimizer in [
    ("lion", keras.optimizers.Lion(RATE)),
    ("nadam", keras.optimizers.Nadam(RATE)),
    ("adamax", keras.optimizers.Adamax(RATE)),
    ("amsgrad", keras.optimizers.Adam(RATE, amsgrad=True)),
]:
    variables = [tf.Variable(given[f"start/{name}"]) for name in names]
    after = []
    for step in range(len(given["gradient/bias"])):
        optimizer.apply_gradients([(tf.constant(given[f"gradient/{name}"][step]), v) for name, v in zip(names, variables)])
        after.append([v.numpy() for v in variables])
    for at, name in enumerate(names):
        arrays[f"{case}/{name}"] = np.stack([values[at] for values in after])
np.savez(sys.argv[2], **arrays)
