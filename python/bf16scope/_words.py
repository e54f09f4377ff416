"""Rewrites the program's messages for Python: flags of the command line become arguments, and commands about a temporary file
become calls of functions. Other commands (`bf16scope plugins install`) stay, since the program is installed too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

#: The argument in Python for each flag that has one.
ARGUMENTS = {
    "dim": "dims",
    "target": "target",
    "policy": "policy",
    "keep": "keep",
    "dtype": "dtype",
    "budget": "budget",
    "compare": "compare=True",
}

#: Phrases without a counterpart as an argument, with their replacements; applied first, in this order.
PHRASES = [
    (r"raise the limit \(--timeout\), if", "give it time, if"),
    (r"raise the limit \(--memory\), or make", "free memory, or make"),
    (r", and bound memory by --memory where the command has it", ""),
    (r"; if it happens again, -vv shows all that the child wrote", ""),
    (r"without --offline and BF16SCOPE_OFFLINE", "without BF16SCOPE_OFFLINE"),
    (r"`run` and `audit` (?:take `--device cpu:[^`]*`|have \d+ devices at most); ", "JAX runs it on its devices: call the function itself; "),
    (r"run it with `--device cpu[^`]*`", "JAX runs it on its devices: call the function itself"),
    (r"(as|in|use|name .* as) --batch-dim( [\w.:]+)?", r"\1 the batch's axis"),
    (r"--batch-dim( [\w.:]+)?", "the batch's axis"),
    (r"give (it|them)( in an \.npz file)? with --inputs.*", "give as many arguments as the function takes"),
    # clap's messages about an option.
    (r"for '--([a-z-]+)( <[^>]*>)?'", r"for --\1"),
    (r"\s*For more information, try '--help'\.", ""),
]

#: The function in Python for each command.
CALLS = {"lower": "explain_casts", "audit": "audit", "compile": "compile_for", "explain": "explain"}

_COMMAND = re.compile(r"`bf16scope ([^`]*)`")
_DIMS = re.compile(r"--dim ([\w:]+=\d+)((?: --dim [\w:]+=\d+)*)")
_TARGET = re.compile(r"--target (tpu-[\w:.]+)")
_FLAG = re.compile(r"`?(?<![\w-])--(" + "|".join(ARGUMENTS) + r")(?![\w-])`?")


#: Characters that a terminal, an editor or a notebook acts on: control characters, bidirectional marks, line and paragraph
#: separators other than the line feed, invisible tags. The program's own list is `bf16scope_hlo::words::steers`.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def visible(text: str) -> str:
    """The text with such characters escaped as the program does: `\\x1b`, `\\r`, `\\u{202e}`. A module's names are not trusted."""

    def escaped(match: re.Match[str]) -> str:
        code = ord(match[0])
        if match[0] == "\r":
            return "\\r"
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{{{code:x}}}"

    return _STEERS.sub(escaped, text)


def in_python(text: str, names: Mapping[str, str] | None = None) -> str:
    """A message of the program, rewritten for Python.

    Args:
      names: the names of functions by the paths of the temporary files that hold their modules.
    """
    names = names or {}
    if "--" not in text and "-vv" not in text and not any(path in text for path in names):
        return text
    pieces, end = [], 0
    for command in _COMMAND.finditer(text):
        pieces += [text[end : command.start()], _call(command, names)]
        end = command.end()
    pieces.append(text[end:])
    # Commands are at the odd places; the texts between them are rewritten as prose.
    text = "".join(piece if number % 2 else _prose(piece) for number, piece in enumerate(pieces))
    for path, name in names.items():
        text = text.replace(path, name)
    return text


def all_in_python(value: Any, names: Mapping[str, str]) -> Any:
    """A value of JSON with every text rewritten by `in_python`."""
    if isinstance(value, dict):
        return {key: all_in_python(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [all_in_python(item, names) for item in value]
    return in_python(value, names) if isinstance(value, str) else value


def _prose(text: str) -> str:
    for pattern, replacement in PHRASES:
        text = re.sub(pattern, replacement, text)
    text = _DIMS.sub(lambda match: f"dims={_dict(match[0])}", text)
    text = _TARGET.sub(r'target="\1"', text)
    return _FLAG.sub(lambda match: f"`{ARGUMENTS[match[1]]}`", text)


def _dict(flags: str) -> str:
    pairs = (pair.split("=") for pair in re.findall(r"--dim (\S+)", flags))
    return "{" + ", ".join(f'"{name}": {size}' for name, size in pairs) + "}"


def _call(command: re.Match[str], names: Mapping[str, str]) -> str:
    """A command about one of the temporary files as a call; any other command unchanged."""
    try:
        words = shlex.split(command[1])
    except ValueError:
        return command[0]
    name = next((names[word] for word in words if word in names), None)
    if name is None or words[0] not in CALLS:
        return command[0]
    arguments = [
        f'{ARGUMENTS[flag[2:]]}="{value}"'
        for flag, value in zip(words, words[1:])
        if flag.startswith("--") and flag[2:] in ARGUMENTS and not value.startswith("--")
    ]
    return f"`bf16scope.jax.{CALLS[words[0]]}({', '.join([name, '…', *arguments])})`"
