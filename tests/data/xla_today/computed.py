"""What JAX and TensorFlow compute by the steps of make.py, in f32 on a CPU, from arguments that both sides make alike.

    python computed.py jax|tf
"""

import pathlib
import re
import sys

import numpy as np

DIMS = ((16, 32), (32, 8), (8, 16), (8, 8))
# Sixty-fourths, so exact; `argument` of tests/hlo/xla_today.rs is the same.
w, v, x, y = [((np.arange(np.prod(d)) * 7 + n * 3) % 23 / 64 - 0.15625).reshape(d).astype(np.float32) for n, d in enumerate(DIMS)]

if sys.argv[1] == "jax":
    import jax

    scope = {}
    exec(re.search("MODEL = '''(.*?)'''", pathlib.Path("make.py").read_text(), re.DOTALL)[1], scope)
    (w, v), loss = jax.jit(scope["step"])([w, v], x, y)
else:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def step(w, v, x, y):
        with tf.GradientTape() as tape:
            tape.watch([w, v])
            z = tf.tanh(x @ w) @ v
            value = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, z))
        dw, dv = tape.gradient(value, [w, v])
        return w - 0.1 * dw, v - 0.1 * dv, value

    w, v, loss = step(*[tf.constant(a) for a in (w, v, x, y)])
np.savez(f"computed_{sys.argv[1]}.npz", out0=w, out1=v, out2=loss)
print(float(loss), float(np.abs(np.asarray(v)).max()))
