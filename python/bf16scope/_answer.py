"""Answers of the program as objects: attributes, `to_dict`, and the page for a notebook."""

from __future__ import annotations

import html
from typing import Any


class Answer:
    """What the program answered: each key of its JSON is an attribute.

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
        """All of it, as JSON has it."""
        return self._answer

    def __repr__(self) -> str:
        return f"<bf16scope {self._command}: {', '.join(self._answer)}>"

    def _repr_html_(self) -> str:
        if self._page is not None:
            return f'<iframe srcdoc="{html.escape(self._page)}" style="width:100%;height:40em;border:0"></iframe>'
        rows = "".join(
            f"<tr><td>{html.escape(str(key))}</td><td>{html.escape(str(value))[:200]}</td></tr>"
            for key, value in self._answer.items()
        )
        return f"<table>{rows}</table>"
