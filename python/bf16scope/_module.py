"""`Module`: a program in HLO."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bf16scope import _native, _program
from bf16scope._answer import Answer
from bf16scope._errors import Error
from bf16scope._words import in_python, visible

#: NumPy's dtype for each of HLO's.
_DTYPES = {
    "pred": np.bool_,
    "s2": ml_dtypes.int2,
    "s4": ml_dtypes.int4,
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
    "u2": ml_dtypes.uint2,
    "u4": ml_dtypes.uint4,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "c64": np.complex64,
    "c128": np.complex128,
}


def policies() -> list[str]:
    """Names of the policies that `lower` knows; it takes a policy document in YAML too."""
    return _native.policies()


class Report:
    """What lowering decided, instruction by instruction.

    Attributes:
      decisions: a dict for each instruction that has to do with f32: `computation`, `instruction`, `opcode`, `old`, `new`,
        `rule` (why), `op_name`.
      casts: a dict for each cast that was inserted.
      totals: for each opcode how many instructions were lowered, and how many were kept.
      notes: what a user should know beyond the numbers.
    """

    def __init__(self, report: dict[str, Any]):
        self._report = report
        self.decisions: list[dict[str, Any]] = report["decisions"]
        self.casts: list[dict[str, Any]] = report["casts"]
        self.totals: dict[str, dict[str, int]] = report["totals"]
        self.notes: list[str] = [in_python(note) for note in report["notes"]]

    @property
    def n_lowered(self) -> int:
        """Instructions that compute in the narrow dtype now."""
        return sum(total["lowered"] for total in self.totals.values())

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return self._report

    def __repr__(self) -> str:
        n_kept = sum(total["kept"] for total in self.totals.values())
        return f"<{self.n_lowered} instructions lowered, {n_kept} kept, {len(self.casts)} casts>"

    def __str__(self) -> str:
        """Each reason with how many instructions it decided, those lowered first."""
        reasons = Counter((it["old"] != it["new"], it["rule"]) for it in self.decisions)
        lines = [
            f"{'lowered' if is_lowered else 'kept':8}{n:6}  {rule}"
            for (is_lowered, rule), n in sorted(reasons.items(), key=lambda it: (not it[0][0], -it[1]))
        ]
        return "\n".join([repr(self)[1:-1], *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{_escaped(opcode)}</td><td>{total['lowered']}</td><td>{total['kept']}</td></tr>"
            for opcode, total in self.totals.items()
        )
        return f"<table><tr><th>op</th><th>lowered</th><th>as before</th></tr>{rows}</table>"


# As the command reads: a module is held several times over while it is read.
_MAX_BYTES = 512 << 20


def _bytes_of(path: str | bytes) -> bytes:
    """A whole file, of a bounded size: a device has no end."""
    with open(path, "rb") as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            raise Error(f"{os.fsdecode(path)} is not a regular file but a character device\nhelp: name a file")
        found = file.read(_MAX_BYTES + 1)
    if len(found) > _MAX_BYTES:
        raise Error(f"{os.fsdecode(path)} has more than {_MAX_BYTES} bytes, the most that is read of a module")
    return found


class Module:
    """A program in HLO. It is a value: what changes it gives another."""

    def __init__(self, native: _native.Module):
        self._native = native

    @staticmethod
    def read(
        source: str | os.PathLike[str] | bytes | Any, name: str = "module", dims: Mapping[str, int] | None = None
    ) -> Module:
        """A module from a file, from bytes or text, or from what `jax.jit(f).lower(…)` gives: HLO text, a serialized `HloModuleProto`, StableHLO as text, bytecode or
        `jax.export` serializes it. `name` is what messages call bytes. `dims` gives the symbolic dimensions of `jax.export`
        their sizes, by name or as parameter and dimension: `{"b": 32}`, `{"0:1": 32}`.

        Raises:
          Error: what the bytes hold instead, or what is wrong in the module, with its place; a symbolic dimension without
            a size, with its name.
          ValueError: a size that is none, or a name that no dimension can have.
          OSError: a file that cannot be read.
        """
        if hasattr(source, "compiler_ir"):
            source = source.compiler_ir("hlo").as_serialized_hlo_module_proto()
        if isinstance(source, str) and "\n" in source:
            source = source.encode()
        if not isinstance(source, (bytes, str, os.PathLike)):
            raise Error(f"`Module.read` takes a path, bytes or text, and was given {type(source).__name__}")
        if not isinstance(source, bytes):
            name = os.fspath(source)
            source = _bytes_of(name)
        sizes = [f"{dim}={size}" for dim, size in (dims or {}).items()]
        return Module(_native.Module.from_bytes(source, name, _program_if_any(), sizes))

    @property
    def name(self) -> str:
        """Its name."""
        return self._native.name

    @property
    def n_instructions(self) -> int:
        """How many instructions it has."""
        return self._native.n_instructions

    @property
    def parameters(self) -> list[tuple[str, tuple[int, ...]]]:
        """Dtype, as HLO writes it, and dims of each parameter."""
        return [(dtype, tuple(dims)) for dtype, dims in self._native.parameters]

    @property
    def results(self) -> list[tuple[str, tuple[int, ...]]]:
        """Dtype, as HLO writes it, and dims of each result."""
        return [(dtype, tuple(dims)) for dtype, dims in self._native.results]

    def lower(
        self, policy: Policy = "default", dtype: str | None = None, keep: str | Iterable[str] = ()
    ) -> tuple[Module, Report]:
        """The module with its heavy work in a narrow dtype, and the report on it.

        Args:
          policy: a preset (`bf16scope.policies()`), a policy document (YAML, or a dict of it), or the path of a file with one.
          dtype: `bfloat16` or `float16`; default the policy's.
          keep: patterns of names (`*/layer_norm/*`) of what stays in f32.
        """
        lowered, report = self._native.lower(policy_text(policy), dtype, patterns(keep))
        return Module(lowered), Report(json.loads(report))

    def run(self, arrays: Sequence[Any], allow_excess_precision: bool = False) -> list[np.ndarray]:
        """Its results over these arrays, on one CPU device of bf16scope's own plugin, in a process of its own. Every
        rounding that the module asks for is performed, unless excess precision is allowed.

        Arrays are what NumPy makes arrays of without a copy (its own, JAX's on a CPU, torch's: whatever has `__dlpack__` or
        `__array__`), with `ml_dtypes.bfloat16` for bf16. They may lie at any address, and are written once, into memory that
        the process sees; only those that are not dense and row-major are copied before. Results are read once, into memory
        that they are views of: read only, at multiples of 16 bytes (JAX takes those at multiples of 64 without a copy).

        Raises:
          Error: arrays that are not what the parameters take; what XLA says.
        """
        parameters = self.parameters
        if isinstance(arrays, Mapping) or hasattr(arrays, "__array__"):
            raise Error(f"`run` was given {type(arrays).__name__}", "give a list, with an array for each parameter in their order")
        if len(arrays) != len(parameters):
            raise Error(f"{self.name} has {len(parameters)} parameters, and {len(arrays)} arrays were given")
        checked = []
        for number, (given, (dtype, dims)) in enumerate(zip(arrays, parameters)):
            array = np.asarray(given)
            expected = np.dtype(_DTYPES[dtype]) if dtype in _DTYPES else None
            if array.dtype != expected or array.shape != dims:
                measured = f"{array.dtype.name}[{','.join(map(str, array.shape))}]"
                wanted = f"{expected.name if expected else dtype}[{','.join(map(str, dims))}]"
                raise Error(f"array {number} is {measured}, and parameter {number} of {self.name} takes {wanted}")
            checked.append(array)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(_lent(array)) for array in checked]
            results = self._native.run(files, _program.path(), allow_excess_precision)
        return [np.asarray(data).view(_DTYPES[dtype]).reshape(dims) for dtype, dims, data in results]

    def compile(self, target: str = "tpu-v2", compare: bool = False, policy: Policy | None = None) -> Answer:
        """What Google's compiler makes of it for a TPU, without one: memory, cycles, seconds.

        Args:
          target: `tpu-v2`, `tpu-v3`, … and a grid of chips if not one board: `tpu-v3:4x4`.
          compare: as it is and lowered, side by side.
          policy: lower it first.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "module.pb"
            path.write_bytes(self.proto())
            options = [*(["--compare"] if compare else []), *(["--policy", policy_word(policy, folder)] if policy else [])]
            answer = _program.ask(
                "compile", path, "--target", target, *options, allow=(0, 1), names={str(path): self.name}
            )
        return Answer("compile", answer)

    def text(self) -> str:
        """HLO text. What it has no words for, of a module that came as a proto, is warned of; `proto` has it."""
        if lost := self._native.lost_in_text():
            warnings.warn(visible(f"HLO text has no words for fields of {', '.join(lost)}; `proto` keeps them"), stacklevel=2)
        return self._native.text()

    def proto(self) -> bytes:
        """A serialized `HloModuleProto`."""
        return self._native.proto()

    def stablehlo(self) -> str:
        """StableHLO text, which JAX and XLA's plugins read."""
        return self._native.stablehlo()

    def __repr__(self) -> str:
        return f"<bf16scope.Module {self.name}: {self.n_instructions} instructions>"


#: A preset, a document in YAML or what it holds, or the path of a file.
Policy = str | os.PathLike | Mapping


def policy_text(policy: Policy) -> str:
    """A preset's name or a policy document as it is; of a path what the file holds.

    Raises:
      Error: what is no policy; a file that cannot be read.
    """
    if isinstance(policy, Mapping):
        return json.dumps(policy, indent=1) if policy else "default"  # which is YAML
    if not isinstance(policy, (str, os.PathLike)):
        raise Error(f"`policy` is {policy!r}", "write a preset's name (`bf16scope.policies()`), a policy document, or a file's path")
    if isinstance(policy, str):
        is_path = not _is_document(policy) and policy not in policies() and (os.path.exists(policy) or policy.endswith((".yaml", ".yml")))
        if not is_path:
            return policy
    try:
        with open(policy, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"the policy {os.fspath(policy)} cannot be read: {error}", "write a preset's name, or a file's path") from error


def _is_document(text: str) -> bool:
    """Whether it is YAML with keys, and not a word."""
    return "\n" in text or ": " in text or text.startswith("{")


def policy_word(policy: Policy, folder: str) -> str | Path:
    """A policy as the program takes it: a name, or a file in the folder, for a document."""
    text = policy_text(policy)
    if text == policy and not _is_document(text):
        return text
    path = Path(folder) / "policy_given.yaml"
    path.write_text(text)
    return path


def patterns(keep: str | Iterable[str]) -> list[str]:
    """One pattern, or several.

    Raises:
      Error: what is no pattern.
    """
    found = [keep] if isinstance(keep, str) else list(keep) if isinstance(keep, Iterable) else [keep]
    if wrong := [it for it in found if not isinstance(it, str)]:
        raise Error(f"{wrong[0]!r} in `keep` is not a pattern", 'write names as text: keep="*/layer_norm/*"')
    return found


@contextlib.contextmanager
def _lent(array: np.ndarray) -> Iterator[str]:
    """The path of memory without a name, sealed, that holds an array: what another process can look at. It is there until the
    end of the block."""
    number = os.memfd_create("bf16scope", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        while rest:
            rest = rest[os.write(number, rest) :]
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _program_if_any() -> str:
    """The program's path; where there is none, only what needs XLA's converter fails, and names it."""
    try:
        return _program.path()
    except Error:
        return "bf16scope"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
