"""Runs the JAX snippets of docs/GUIDE.md as they stand there, and keeps the modules that they write beside this file.

Recorded with jax 0.10.2 and flax 0.12.8 on a CPU.
"""

import os, pathlib, re, shutil, subprocess, sys, tempfile

here = pathlib.Path(__file__).resolve().parent
guide = (here.parents[2] / "docs/GUIDE.md").read_text()
snippets = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
for files in (["mlp.hlo.pb", "mlp.hlo.txt"], ["step.mlir"]):
    [snippet] = [snippet for snippet in snippets if f'open("{files[0]}", "w' in snippet]
    with tempfile.TemporaryDirectory() as folder:
        # From standard input, and flax's files from their package on: no path of this machine is in the module.
        named = os.environ | {"JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX": ".*site-packages/"}
        subprocess.run([sys.executable, "-"], input=snippet, text=True, cwd=folder, env=named, check=True)
        for file in files:
            shutil.copy(f"{folder}/{file}", here / file)
