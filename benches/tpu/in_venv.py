"""A virtual environment with the Python packages that `jax` and `policy` need, and the bf16scope that they run."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# The libtpu that bf16scope compiles with.
[LIBTPU] = re.findall(r'"libtpu-([^-"]+)-', (ROOT / "crates/pjrt/src/spec.rs").read_text())
PACKAGES = {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8", "optax": "0.2.8", "libtpu": LIBTPU}

# XLA's flag for excess precision.
EXCESS = "xla_allow_excess_precision"
# XLA's flag that names kinds of fusions which a library of kernels computes, sums among them. JAX sends the defaults of
# its own jaxlib with every program, and those of 0.10.2 name some; by default our plugin has none.
LIBRARY = "xla_cpu_experimental_ynn_fusion_type"


def said(names=PACKAGES):
    """Packages and their versions."""
    return ", ".join(f"{name} {PACKAGES[name]}" for name in names)


def program():
    """The bf16scope to run."""
    if named := os.environ.get("BF16SCOPE"):
        return named
    subprocess.run(["cargo", "build", "--quiet", "--locked"], cwd=ROOT, check=True)
    return str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "bf16scope")


def by_plugin(bf16scope):
    """Variables with which JAX drives bf16scope's CPU plugin, with excess precision off."""
    where = subprocess.run([bf16scope, "plugins", "where", "cpu"], check=True, stdout=subprocess.PIPE, text=True)
    return {
        "PJRT_NAMES_AND_LIBRARY_PATHS": f"bf16scope_cpu:{where.stdout.strip()}",
        "JAX_PLATFORMS": "bf16scope_cpu",
        "XLA_FLAGS": f"--{EXCESS}=false",
    }


def enter(without=()):
    """Restarts the script in the virtual environment `BF16SCOPE_VENV`, by default one in `target`; installs missing packages."""
    folder = Path(os.environ.get("BF16SCOPE_VENV") or ROOT / "target" / "jax-venv").absolute()
    if Path(sys.prefix) == folder:
        return
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    wanted = [f"{name}=={version}" for name, version in PACKAGES.items() if name not in without]
    # It prints nothing if every package is installed.
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, stdout=sys.stderr)
    os.execv(python, [python, *sys.argv])
