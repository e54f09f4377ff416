"""bf16scope: bfloat16 for XLA programs.

* `bf16scope.jax.lower(fn)` computes a JAX function in bfloat16: parameters, results and gradients stay f32.
* `bf16scope.Module` is a program from JAX, TensorFlow or PyTorch/XLA: read, lowered, run, written.
* The program `bf16scope` comes along: `bf16scope --help`.
"""

from importlib.metadata import version

from bf16scope._errors import Error
from bf16scope._module import Module, policies

__all__ = ["Error", "Module", "__version__", "policies"]

__version__ = version("bf16scope")
