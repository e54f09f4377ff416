"""Locates and runs the program `bf16scope` that the wheel contains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bf16scope._errors import Error
from bf16scope._words import all_in_python, in_python

#: The variable that names another program.
VARIABLE = "BF16SCOPE"


def path() -> str:
    """The path of the program.

    Raises:
      Error: the program is not where the wheel installs it.
    """
    named = os.environ.get(VARIABLE)
    program = Path(named) if named else Path(__file__).parent / "_bin" / "bf16scope"
    if not program.is_file():
        where = f"{VARIABLE} names {program}, which is no file" if named else f"there is no {program}"
        raise Error(where, f"install the wheel again, or name a bf16scope program with {VARIABLE}")
    return str(program)


def main() -> None:
    """Replaces this process by the program."""
    try:
        program = path()
    except Error as error:
        sys.exit(f"bf16scope: {error}")
    os.execv(program, ["bf16scope", *sys.argv[1:]])


def ask(
    *arguments: str | os.PathLike[str], allow: Sequence[int] = (0,), names: Mapping[str, str] | None = None, report: Path | None = None
) -> Any:
    """Runs the program with `--json` and returns its answer, or without it the JSON that it writes to `report`. Ctrl-C ends it.
    `names` are the names in Python of its files.

    Raises:
      Error: the program's error.
    """
    shown = ["--report", os.fspath(report)] if report else ["--json"]
    command = [path(), *(os.fspath(argument) for argument in arguments), *shown, "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    try:
        answer = json.loads(report.read_bytes() if report and report.exists() else done.stdout)
    except ValueError:
        answer = None
    names = names or {}
    if done.returncode in allow and answer is not None:
        return all_in_python(answer, names)
    failure = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(failure, dict):
        failure = all_in_python(failure, names)
        raise Error(failure["message"], failure.get("help"), failure.get("causes"))
    message = done.stderr.strip().removeprefix("bf16scope: ") or f"bf16scope ended with status {done.returncode}"
    raise Error(in_python(message, names))
