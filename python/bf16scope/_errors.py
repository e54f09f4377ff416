"""The one exception of bf16scope's own."""

from __future__ import annotations


class Error(Exception):
    """What bf16scope cannot do, with what to do about it.

    Attributes:
      message: what is wrong, where, and what was expected.
      help: what to do, or None.
      causes: why, the nearest cause first.
    """

    def __init__(self, message: str, help: str | None = None, causes: list[str] | None = None):
        self.message = message
        self.help = help
        self.causes = list(causes or [])
        lines = [message, *(f"  caused by: {cause}" for cause in self.causes)]
        super().__init__("\n".join(lines + ([f"help: {help}"] if help else [])))

    @property
    def where(self) -> str | None:
        """The place that the message begins with, such as `step.mlir:3:12` or `main/%dot.3`; None if it names none."""
        place, colon, _ = self.message.partition(": ")
        return place if colon and " " not in place else None

    def __reduce__(self):
        return type(self), (self.message, self.help, self.causes)


#: The name by which the native half knows it.
ModuleError = Error
