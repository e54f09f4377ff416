"""Loads StableHLO that bf16scope wrote in JAX, runs it there, and compares with what `bf16scope run` gave.

    bf16scope emit step.hlo.pb -o step.mlir
    bf16scope run step.mlir --inputs in.npz --outputs out.npz
    python load.py step.mlir in.npz out.npz

`in.npz` holds the arguments by position (in0, in1, …), as for `run`. jaxlib's own CPU client compiles, which is another XLA than
bf16scope's plugin; `xla_allow_excess_precision` is off, so that roundings to bf16 stay. Prints the largest difference of
each output, in units of the output's own rounding.
"""

import os
import sys

os.environ.setdefault("XLA_FLAGS", "--xla_allow_excess_precision=false")

import jax
import numpy as np
from jax.extend.backend import get_backend, get_compile_options


def load(path):
    """The program in a file of StableHLO, compiled for JAX's first device."""
    client = get_backend()
    options = get_compile_options(num_replicas=1, num_partitions=1)
    return client.compile_and_load(open(path).read(), client.devices()[:1], options)


def main():
    program, arguments, expected = load(sys.argv[1]), np.load(sys.argv[2]), np.load(sys.argv[3])
    arrays = [jax.device_put(arguments[f"in{n}"]) for n in range(len(arguments.files))]
    results = [np.asarray(result) for result in program.execute(arrays)]
    assert len(results) == len(expected.files), (len(results), len(expected.files))
    for name, result in zip(expected.files, results):
        wanted = expected[name]
        assert wanted.shape == result.shape, (name, wanted.shape, result.shape)
        if wanted.tobytes() == result.tobytes():
            print(name, result.dtype, "the same bits")
            continue
        wide, found = wanted.astype(np.float64), result.astype(np.float64)
        scale = np.finfo(np.float32).eps * max(np.abs(wide).max(), 1e-30)
        print(name, result.dtype, f"differs by at most {np.abs(wide - found).max() / scale:.3g} of f32's rounding of its largest")


if __name__ == "__main__":
    main()
