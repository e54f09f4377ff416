"""What a type checker knows of functions that are lowered: their own signature."""

import subprocess
import sys

import pytest

PROGRAM = '''
from bf16scope.jax import full_precision, lower

def step(rate: float, mode: str = "train") -> int:
    return 1

reveal_type(lower(step))
reveal_type(lower(step, policy="O2", keep=["*/head/*"]))

class Network:
    @lower(policy="default")
    def apply(self, x: float) -> bytes:
        return b""
    @full_precision
    def head(self, x: float) -> bytes:
        return b""

reveal_type(Network().apply(1.0))
reveal_type(Network().head)
with full_precision():
    pass
lower(step)("text")
lower(step, polcy="O2")
'''


# The annotations of `lower` say nothing of JAX, whose own take mypy half a minute.
CONFIG = """
[mypy]
strict = True
follow_imports = silent
[mypy-jax.*,jaxlib.*,numpy.*,ml_dtypes.*]
follow_imports = skip
"""


def test_signatures_stay(tmp_path):
    pytest.importorskip("mypy", reason="only with mypy")
    pytest.importorskip("jax", reason="only with jax")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if "program.py" in line]
    step = 'note: Revealed type is "def (rate: float, mode: str =) -> int"'
    plain = [line.replace("builtins.", "").replace("def (rate: float, mode: str = ...)", "def (rate: float, mode: str =)") for line in lines]
    assert plain[:4] == [step, step, 'note: Revealed type is "bytes"', 'note: Revealed type is "def (x: float) -> bytes"'], done.stdout
    errors = [line for line in plain[4:] if "error" in line]
    assert len(errors) == 3 and '"str"; expected "float"' in errors[0] and "polcy" in errors[1], done.stdout + done.stderr
