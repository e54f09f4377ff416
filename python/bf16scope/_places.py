"""Warnings at the user's line: the innermost frame that is neither this package's nor JAX's, nor of what is built on it."""

from __future__ import annotations

import functools
import os
import sys
import warnings

#: Packages whose frames stand between a user's line and a warning.
LIBRARIES = ("bf16scope", "jax", "jaxlib", "flax", "optax", "equinox", "functools", "contextlib")


@functools.lru_cache(maxsize=4096)
def _is_library(path: str) -> bool:
    """Whether a file belongs to one of the libraries, wherever they are installed."""
    if path.startswith("<"):
        return True
    folders = [getattr(sys.modules.get(name), "__file__", None) for name in LIBRARIES]
    return any(path == file or file.endswith("__init__.py") and path.startswith(os.path.dirname(file) + os.sep) for file in folders if file)


def warn(message: str) -> None:
    """`warnings.warn` at the user's line, or at the caller's where there is no such line."""
    frame, level = sys._getframe(1), 1
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=2 if frame is None else level + 1)
