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
    "s4": ml_dtypes.int4,
    "s8": np.int8,
    "s16": np.int16,
    "s32": np.int32,
    "s64": np.int64,
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

#: The names of dtypes that ml_dtypes has from 0.5 on.
_FROM_0_5 = {"s2": "int2", "u2": "uint2"}
_DTYPES.update((dtype, getattr(ml_dtypes, name)) for dtype, name in _FROM_0_5.items() if hasattr(ml_dtypes, name))


def _check_dtype(dtype: str, place: str) -> None:
    """Raises an Error if the installed ml_dtypes is too old for a dtype."""
    if dtype in _FROM_0_5 and dtype not in _DTYPES:
        measured = f"{place} is {dtype}, `ml_dtypes.{_FROM_0_5[dtype]}`, which ml_dtypes {ml_dtypes.__version__} does not have"
        raise Error(measured, "install ml_dtypes 0.5 or later: `pip install 'ml_dtypes>=0.5'`")


def policies() -> list[str]:
    """The names of the preset policies. `lower` also takes a policy document in YAML."""
    return _native.policies()


class Report:
    """The report of a lowering: its decision for each instruction.

    Attributes:
      decisions: a dict for each instruction that involves f32: `computation`, `instruction`, `opcode`, `old`, `new`, `is_lowered`,
        `rule` (the reason), `op_name`.
      casts: a dict for each inserted cast.
      totals: for each opcode the numbers of lowered and of kept instructions, without parameters and constants.
      notes: remarks and warnings.
    """

    def __init__(self, report: dict[str, Any]):
        self._report = report
        self.decisions: list[dict[str, Any]] = report["decisions"]
        self.casts: list[dict[str, Any]] = report["casts"]
        self.totals: dict[str, dict[str, int]] = report["totals"]
        self.notes: list[str] = [in_python(note) for note in report["notes"]]

    @staticmethod
    def joined(parts: Sequence[tuple[str, Report]]) -> Report:
        """The report of a program whose parts are separate modules, by their names; the last one is the outermost. Computations are
        named after their part."""
        reports = [report.to_dict() for _, report in parts]
        whole = dict(reports[-1])
        for key in ("decisions", "casts"):
            rows = ((name, row) for name, report in parts for row in report.to_dict()[key])
            whole[key] = [{**row, "computation": f"{name}/{row['computation']}"} for name, row in rows]
        for key in ("n_activation_bytes_before", "n_activation_bytes_after", "n_cast_bytes"):
            whole[key] = sum(report[key] for report in reports)
        whole["hurts"] = [it for report in reports for it in report["hurts"]]
        whole["notes"] = list(dict.fromkeys(note for report in reports for note in report["notes"]))
        totals: dict[str, Counter[str]] = {}
        for opcode, total in ((opcode, total) for report in reports for opcode, total in report["totals"].items()):
            totals.setdefault(opcode, Counter()).update(total)
        whole["totals"] = {opcode: dict(totals[opcode]) for opcode in sorted(totals)}
        return Report(whole)

    @property
    def n_lowered(self) -> int:
        """The number of instructions that compute in the narrow dtype."""
        return sum(total["lowered"] for total in self.totals.values())

    def to_dict(self) -> dict[str, Any]:
        """The whole report, as in JSON."""
        return self._report

    def __repr__(self) -> str:
        n_kept = sum(total["kept"] for total in self.totals.values())
        return f"<{self.n_lowered} instructions lowered, {n_kept} kept, {len(self.casts)} casts>"

    def __str__(self) -> str:
        """Each reason with the number of instructions that it decided, of those in `totals`; lowered instructions first."""
        reasons = Counter((it["is_lowered"], it["rule"]) for it in self.decisions if it["opcode"] in self.totals)
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


# The command's limit: several copies of a module are in memory while it is read.
_MAX_BYTES = 512 << 20


def _bytes_of(path: str | bytes | os.PathLike) -> bytes:
    """The contents of a file of bounded size. As in the program, a device and a FIFO with a name in the file system, which may have
    no end or no writer, are refused; an open pipe (`/dev/stdin`, `/dev/fd/63`) is read."""
    name = os.fsdecode(path)
    # Some files in /proc, such as /proc/kmsg, claim to be regular, and wait for more data.
    with open(path, "rb", opener=lambda opened, flags: os.open(opened, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode):
            raise Error(f"{name} is not a regular file but a character device", "name a file")
        if stat.S_ISFIFO(mode):
            if name != "/dev/stdin" and os.path.dirname(name) not in ("/dev/fd", "/proc/self/fd"):
                raise Error(f"{name} is not a regular file but a FIFO", "save to a file what comes through it, or use /dev/stdin")
            os.set_blocking(file.fileno(), True)
        contents = file.read(_MAX_BYTES + 1) or b""
        try:
            # The buffered read above just ends where it would wait; this one raises an error.
            os.read(file.fileno(), 1)
        except BlockingIOError:
            raise Error(
                f"{name}: a read of it would wait for data that may never come", "save to a file what it gives, and name that file"
            ) from None
    if len(contents) > _MAX_BYTES:
        raise Error(f"{name} has more than {_MAX_BYTES} bytes, the most that is read of it")
    return contents


class Module:
    """A program in HLO. It is immutable: operations on it return new modules."""

    def __init__(self, native: _native.Module):
        self._native = native

    @staticmethod
    def read(
        source: str | os.PathLike[str] | bytes | Any, name: str = "module", dims: Mapping[str, int] | None = None
    ) -> Module:
        """Reads a module from a file, from bytes or text, or from the result of `jax.jit(f).lower(…)`. The formats are HLO text, a
        serialized `HloModuleProto`, and StableHLO as text, as bytecode or as `jax.export` serializes it. `name` is the name of
        bytes in messages. `dims` are the sizes of symbolic dimensions of `jax.export`, by name or as parameter and dimension:
        `{"b": 32}`, `{"0:1": 32}`.

        Raises:
          Error: the bytes are not a module, or the module is wrong, with the place; a symbolic dimension has no size.
          ValueError: an invalid size, or a name that no dimension can have.
          OSError: the file cannot be read.
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
        """The number of its instructions."""
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
        self,
        policy: Policy = "default",
        dtype: str | None = None,
        keep: str | Iterable[str] = (),
        *,
        losses: Sequence[int] | None = None,
    ) -> tuple[Module, Report]:
        """The module with its heavy work in a narrow dtype, and the report on it.

        Args:
          policy: a preset (`bf16scope.policies()`), a policy document (YAML, or a dict of it), or the path of a file with one.
          dtype: `bfloat16` or `float16`; default the policy's.
          keep: patterns of the names of instructions that stay in f32 (`*/layer_norm/*`).
          losses: the numbers of the results that are losses, unless the policy names them; default a guess.
        """
        lowered, report = self._native.lower(policy_text(policy), dtype, patterns(keep), losses)
        return Module(lowered), Report(json.loads(report))

    def run(self, arrays: Sequence[Any], allow_excess_precision: bool = False) -> list[np.ndarray]:
        """Runs the module on these arrays, on one CPU device of bf16scope's own plugin, in a separate process. Every rounding in the
        module is performed, unless excess precision is allowed.

        Arrays are anything that NumPy converts without a copy (NumPy's own, JAX's on a CPU, torch's: objects with `__dlpack__` or
        `__array__`), with `ml_dtypes.bfloat16` for bf16. They may have any alignment, and are copied once, into memory shared with
        the process; arrays that are not dense and row-major are copied once more before. Results are read-only views of memory
        that they are read into once, aligned to 16 bytes (JAX takes arrays aligned to 64 bytes without a copy).

        Raises:
          Error: arrays do not match the parameters; the installed ml_dtypes is too old for a dtype; XLA's errors.
        """
        parameters = self.parameters
        if isinstance(arrays, Mapping) or hasattr(arrays, "__array__"):
            raise Error(f"`run` was given {type(arrays).__name__}", "give a list, with an array for each parameter in their order")
        if len(arrays) != len(parameters):
            raise Error(f"{self.name} has {len(parameters)} parameters, and {len(arrays)} arrays were given")
        for kind, shapes in (("parameter", parameters), ("result", self.results)):
            for number, (dtype, _) in enumerate(shapes):
                _check_dtype(dtype, f"{kind} {number} of {self.name}")
        checked = []
        for number, (argument, (dtype, dims)) in enumerate(zip(arrays, parameters)):
            array = np.asarray(argument)
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
        """Compiles the module for a TPU by Google's compiler, without a TPU: memory, cycles, seconds.

        Args:
          target: `tpu-v2`, `tpu-v3`, … and a grid of chips if not one board: `tpu-v3:4x4`.
          compare: the module as it is and lowered, side by side.
          policy: lower the module first.
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
        """HLO text. It warns of fields of a module read from a proto that HLO text cannot express; `proto` keeps them."""
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


#: A preset, a policy document in YAML or as a dict, or the path of a file.
Policy = str | os.PathLike | Mapping


def policy_text(policy: Policy) -> str:
    """A preset's name or a policy document unchanged; for a path the file's contents.

    Raises:
      Error: the argument is not a policy; the file cannot be read.
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
        return _bytes_of(policy).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"the policy {os.fspath(policy)} cannot be read: {error}", "write a preset's name, or a file's path") from error


def _is_document(text: str) -> bool:
    """Whether a text is YAML with keys, and not a name."""
    return "\n" in text or ": " in text or text.startswith("{")


def policy_word(policy: Policy, folder: str) -> str | Path:
    """A policy as the program takes it: a name, or, for a document, a file in the folder."""
    text = policy_text(policy)
    if text == policy and not _is_document(text):
        return text
    path = Path(folder) / "policy_given.yaml"
    path.write_text(text)
    return path


def patterns(keep: str | Iterable[str]) -> list[str]:
    """A single pattern or several, as a list.

    Raises:
      Error: an element is not a pattern.
    """
    listed = [keep] if isinstance(keep, str) else list(keep) if isinstance(keep, Iterable) else [keep]
    if wrong := [it for it in listed if not isinstance(it, str)]:
        raise Error(f"{wrong[0]!r} in `keep` is not a pattern", 'write names as text: keep="*/layer_norm/*"')
    return listed


@contextlib.contextmanager
def _lent(array: np.ndarray) -> Iterator[str]:
    """The path of a sealed anonymous memory file with an array's contents, which another process can map. It exists until the end
    of the block."""
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
    """The program's path. Without a program only reading that needs XLA's converter fails, with an error that names the program."""
    try:
        return _program.path()
    except Error:
        return "bf16scope"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
