#!/usr/bin/env python3
"""Writes the corpus: training steps as JAX exports them for a TPU, without metadata, as compressed HLO text.

    BF16SCOPE_VENV=/path/of/venv tests/data/corpus/make.py [--sizes WIDTH,HEADS,LAYERS,TIME,BATCH,WORDS --into FOLDER] [NAME ...]

Python packages are installed as for benches/tpu/jax. The networks of benches/tpu/networks.py have the batch whose figures
benches/tpu/policy.md records; those of steps.py are small, unless other sizes are asked for. Of these the form that is bf16 by hand is written, too.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path += [str(ROOT / "benches/tpu"), str(HERE)]

import in_venv


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes")
    parser.add_argument("--into", type=Path, default=HERE)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    if asked.sizes:
        os.environ["BF16SCOPE_STEP_SIZES"] = asked.sizes
    in_venv.enter(without=["libtpu"])
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import networks
    import steps
    from export import save
    from policy_rows import ROWS

    folder, wanted = asked.into, asked.names
    for name, batch, *_ in ROWS:
        if name in wanted or not wanted:
            train, arguments = networks.step(name, jnp.float32, batch)
            save(folder, name, train, jax.eval_shape(arguments, 0), 0)
    for name, of_dtype in steps.STEPS.items():
        if name in wanted or not wanted:
            for form, dtype in [("", jnp.float32), ("_by_hand", jnp.bfloat16)]:
                step, arguments = of_dtype(dtype)
                save(folder, name + form, step, arguments, (0, 1) if len(arguments) == 4 else 0)


main()
