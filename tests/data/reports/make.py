#!/usr/bin/env python3
"""Writes each program of programs.py as JAX exports it (compressed HLO text), with its inputs, what f32 gives, and how far
from that a form may be.

    BF16SCOPE_VENV=/path/of/venv tests/data/reports/make.py [NAME ...]

The bound of a result is a norm: of the difference, as a share of the result. The program runs in f64, and once more for each
of 64 draws, in which every value that its author would round to bf16 is off by as much as a rounding may be (a share of at
most 2^-9, drawn uniformly), and so is every cotangent that comes back there. What f32 does is like inputs that are off by
some units of f32, whatever the order of its sums: each input but integers is off by a share of at most 2^-20, sixteen units,
in the same draws. Four times the root mean square of what all that does to the result is allowed, and sixteen units of the
result. Where nothing is marked, f32 alone is allowed for.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent.parent / "benches/tpu"), str(HERE.parent / "corpus"), str(HERE)]

import in_venv

# What a rounding to bf16, which has eight bits, moves a number by at most.
UNIT = 2.0**-9
# Sixteen units of f32.
F32 = 2.0**-20
N_DRAWS, N_SIGMAS = 64, 4


def main():
    in_venv.enter(without=["libtpu"])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from export import save
    from programs import PROGRAMS

    @jax.custom_vjp
    def scaled(x, forwards, backwards):
        return x * (1 + forwards)

    scaled.defvjp(
        lambda x, f, b: (scaled(x, f, b), (x, f, b)),
        lambda of, ct: (ct * (1 + of[1]) * (1 + of[2]), jnp.zeros_like(of[1]), jnp.zeros_like(of[2])),
    )

    class Marked:
        """What `s` is: nothing, or for a key what rounds."""

        def __init__(self, key=None):
            self.key, self.n = key, 0

        def __call__(self, x):
            if self.key is None:
                return x
            self.n += 1
            keys = jax.random.split(jax.random.fold_in(self.key, self.n))
            return scaled(x, *(jax.random.uniform(k, x.shape, x.dtype, -UNIT, UNIT) for k in keys))

        def dot(self, x, y):
            return self(self(x) @ self(y))

    def run(f, inputs, key=None):
        return jax.tree.leaves(f(Marked(key), *inputs))

    share = lambda error, of: float(np.linalg.norm(error) / max(np.linalg.norm(of), 1e-300))
    for name, (f, inputs) in PROGRAMS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        jax.config.update("jax_enable_x64", False)
        save(HERE, name, lambda *inputs: run(f, inputs), inputs)
        f32 = [np.asarray(x) for x in jax.jit(lambda *inputs: run(f, inputs))(*inputs)]
        jax.config.update("jax_enable_x64", True)
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in map(np.asarray, inputs)]
        exact = [np.asarray(x, np.float64) for x in jax.jit(lambda *wide: run(f, wide))(*wide)]

        def off(key, x):
            by = jax.random.uniform(key, x.shape, jnp.float64, -F32, F32)
            return jnp.where(x == jnp.round(x), x, x * (1 + by)) if x.dtype == np.float64 else x

        drawn = jax.jit(lambda key, *wide: run(f, [off(jax.random.fold_in(key, 1000 + n), x) for n, x in enumerate(wide)], key))
        draws = [[np.asarray(x, np.float64) for x in drawn(jax.random.key(n), *wide)] for n in range(N_DRAWS)]
        bounds = []
        for at, (x, y) in enumerate(zip(f32, exact)):
            of_marks = np.sqrt(np.mean([share(draw[at] - y, y) ** 2 for draw in draws]))
            bounds.append(N_SIGMAS * of_marks + F32)
            assert share(x - y, y) < bounds[-1], (name, share(x - y, y), bounds)
        arrays = {f"in{n}": x for n, x in enumerate(inputs)} | {f"out{n}": x for n, x in enumerate(f32)}
        np.savez_compressed(HERE / f"{name}.npz", bounds=np.array(bounds), **arrays)
        assert all(np.isfinite(x).all() for x in f32), name
        print(name, ", ".join(f"{bound:.1e}" for bound in bounds), flush=True)


main()
