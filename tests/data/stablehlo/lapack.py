"""Writes what JAX lowers Cholesky factors and triangular solves to on a CPU, calls of LAPACK, and what it computes: `lapack.mlir`,
`lapack_in.npz` and `lapack_out.npz`. All numbers are whole and small, so every order of the sums gives the same bits.

python lapack.py FOLDER
"""

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular


def f(a, low, b, c):
    return (
        jnp.linalg.cholesky(a),
        jnp.linalg.cholesky(a, upper=True),
        jnp.linalg.cholesky(-a),
        solve_triangular(low, b, lower=True),
        solve_triangular(low.mT, b, lower=False, trans=1),
        solve_triangular(low, b, lower=True, unit_diagonal=True),
        jax.lax.linalg.triangular_solve(low, c, left_side=False, lower=True, transpose_a=True),
    )


def main():
    rng = np.random.default_rng(5)
    whole = lambda *dims: rng.integers(-3, 4, dims).astype(np.float32)
    low = np.tril(whole(2, 4, 4), -1) + np.diag([1, 2, 4, 2]).astype(np.float32)
    b, c = low @ whole(2, 4, 3), whole(2, 3, 4) @ low.transpose(0, 2, 1)
    arguments = (low @ low.transpose(0, 2, 1), low, b, c)
    lowered = jax.jit(f).lower(*arguments)
    with open(os.path.join(sys.argv[1], "lapack.mlir"), "w") as file:
        file.write(lowered.as_text())
    results = {f"out{i}": np.asarray(result) for i, result in enumerate(jax.jit(f)(*arguments))}
    inputs = {f"in{i}": argument for i, argument in enumerate(arguments)}
    np.savez(os.path.join(sys.argv[1], "lapack_in.npz"), **inputs)
    np.savez(os.path.join(sys.argv[1], "lapack_out.npz"), **results)


main()
