"""The program's answers as objects: attributes, `to_dict`, and a page for notebooks."""

from __future__ import annotations

import html
from typing import Any


#: Rows of a table that a notebook shows; all are in `to_dict`.
MOST_ROWS = 40


class Answer:
    """An answer of the program: each key of its JSON is an attribute.

    In a notebook it shows the program's page, if there is one.
    """

    def __init__(self, command: str, answer: dict[str, Any], page: str | None = None):
        self._command, self._answer, self._page = command, answer, page

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._answer[name]
        except KeyError:
            raise AttributeError(f"`{self._command}` answers {', '.join(self._answer)}, and no `{name}`") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._answer]

    def to_dict(self) -> dict[str, Any]:
        """The whole answer, as in JSON."""
        return self._answer

    def __str__(self) -> str:
        """The answer as lines of text."""
        return "\n".join([f"bf16scope {self._command}", *_lines(self._answer)])

    def __repr__(self) -> str:
        return f"<bf16scope {self._command}: {', '.join(self._answer)}>"

    def _repr_html_(self) -> str:
        if self._page is not None:
            return f'<iframe srcdoc="{html.escape(self._page)}" style="width:100%;height:40em;border:0"></iframe>'
        return _shown(self._answer)


#: Rows of a list that `print` shows, characters of a row, and the length up to which a list of objects is shown whole.
MOST_LINES, WIDTH, FEW = 10, 150, 3


def _lines(value: dict[str, Any], depth: int = 1) -> list[str]:
    """An object of JSON as indented lines. Empty values are left out."""
    lines, indent = [], "  " * depth
    for key, item in value.items():
        name = f"{indent}{key.replace('_', ' ')}:"
        if item in (None, [], {}, ""):
            continue
        if isinstance(item, dict):
            lines += [name, *_lines(item, depth + 1)]
        elif isinstance(item, list) and len(item) <= FEW and all(isinstance(it, dict) for it in item):
            lines += [line for number, it in enumerate(item) for line in (f"{name[:-1]} {number}:", *_lines(it, depth + 1))]
        elif isinstance(item, list) and any(isinstance(it, (dict, list)) for it in item):
            rows = [f"{indent}  {_line(it)}" for it in item[:MOST_LINES]]
            more = [f"{indent}  and {len(item) - MOST_LINES} more"] if len(item) > MOST_LINES else []
            lines += [name, *(row if len(row) <= WIDTH else f"{row[: WIDTH - 1]}…" for row in rows), *more]
        else:
            lines.append(f"{name} {_line(item)}")
    return lines


def _line(value: Any) -> str:
    """A value of JSON as a single line."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_line(item)}" for key, item in value.items() if item not in (None, [], {}, ""))
    if isinstance(value, list):
        return ", ".join(map(_line, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return str(value)


def _shown(value: Any) -> str:
    """A value of JSON as HTML: objects as rows, lists of objects as a table, numbers with separators."""
    if isinstance(value, dict):
        rows = (f"<tr><th>{html.escape(str(key))}</th><td>{_shown(item)}</td></tr>" for key, item in value.items())
        return f"<table>{''.join(rows)}</table>"
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        keys = list(dict.fromkeys(key for item in value for key in item))
        head = "".join(f"<th>{html.escape(str(key))}</th>" for key in keys)
        rows = ("".join(f"<td>{_shown(item.get(key))}</td>" for key in keys) for item in value[:MOST_ROWS])
        left_out = f"<p>and {len(value) - MOST_ROWS} more</p>" if len(value) > MOST_ROWS else ""
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{left_out}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, (int, float)):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return html.escape(str(value))
