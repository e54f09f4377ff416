"""The exception that bf16scope raises."""

from __future__ import annotations

from collections.abc import Sequence

from bf16scope._words import in_python, visible


class Error(Exception):
    """Something that bf16scope cannot do, with help.

    Attributes:
      message: what is wrong, where, and what was expected.
      help: what to do, or None.
      causes: why, the nearest cause first.
    """

    def __init__(self, message: str, help: str | None = None, causes: Sequence[str] | None = None):
        # Messages of the program and of the native module are rewritten for Python.
        self.message = visible(in_python(message))
        self.help = visible(in_python(help)) if help else None
        self.causes = [visible(in_python(cause)) for cause in causes or []]
        lines = [self.message, *(f"  caused by: {cause}" for cause in self.causes)]
        super().__init__("\n".join(lines + ([f"help: {self.help}"] if self.help else [])))

    @property
    def where(self) -> str | None:
        """The place at the beginning of the message, such as `step.mlir:3:12` or `main/%dot.3`; None if it has none."""
        place, colon, _ = self.message.partition(": ")
        return place if colon and " " not in place else None

    def __reduce__(self):
        return type(self), (self.message, self.help, self.causes)


#: The name that the native module uses.
ModuleError = Error
