"""A loss through one `lax.scan`, as JAX exports its forward, and what `jax.grad` gives for it: `lstm.hlo.txt`, `lstm.npz`.

jax 0.10.2 (Apache-2.0) on a CPU: `python make.py`. The module is of the loss alone, in f32; the values are computed in f64 of
the same numbers. Metadata and tables of source lines were removed; nothing else was changed.
"""
import re
import jax
import jax.numpy as jnp
import numpy as np

N_STEPS, BATCH, WIDTH, UNITS = 7, 3, 5, 4


def loss(xs, kernel, recurrent, bias, h, weights):
    """An LSTM over all steps, backwards, which carries a pair, counts, and gives a pair of each step."""

    def step(carried, x):
        h, c, number = carried
        gates = x @ kernel + h @ recurrent + bias
        i, f, g, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c) * jnp.where(number % 2 == 0, 1.0, 0.5)
        return (h, c, number + 1), (h, c * x[:, :1])

    (h, c, _), (all_h, all_c) = jax.lax.scan(step, (h, jnp.zeros_like(h), jnp.int32(0)), xs, reverse=True)
    return jnp.sum(all_h * weights) + jnp.sum(all_c * all_c) + jnp.sum(h * c)


rng = np.random.default_rng(23)
shapes = [(N_STEPS, BATCH, WIDTH), (WIDTH, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,), (BATCH, UNITS), (N_STEPS, BATCH, UNITS)]
arguments = [rng.normal(size=shape).astype("f4") for shape in shapes]
lowered = jax.jit(loss).lower(*arguments)
text = lowered.compiler_ir("hlo").as_hlo_text()
text = re.sub(r", metadata={[^}]*}", "", text)
text = re.sub(r"(?ms)^(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?\n\n", "", text)
open("lstm.hlo.txt", "w").write(text)

jax.config.update("jax_enable_x64", True)
wide = [jnp.array(argument, "f8") for argument in arguments]
value, gradients = jax.value_and_grad(loss, argnums=tuple(range(len(wide))))(*wide)
out = {f"in{number}": argument for number, argument in enumerate(arguments)}
out |= {f"gradient{number}": np.asarray(gradient) for number, gradient in enumerate(gradients)}
np.savez_compressed("lstm.npz", loss=np.asarray(value), **out)
