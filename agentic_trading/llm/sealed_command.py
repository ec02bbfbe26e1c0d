"""The command that ships sealed segments of a log to another storage: `log.sealed_command`."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Final, Self

from agentic_trading.llm.redaction import Redaction

_PLACEHOLDERS: Final = ("path", "log")
_BRACES: Final = "Write other braces twice, as in {{ and }}"


@dataclass(frozen=True, slots=True)
class SealedCommand:
    """A program with its arguments, started without a shell.

    Attributes:
        words: The program and its arguments. `{path}` is the file to ship, `{log}` the id of the log: the hash of its
            first line.
        redaction: Secrets to remove from the output of the program.

    """

    words: tuple[str, ...]
    redaction: Redaction = field(default_factory=Redaction)

    @classmethod
    def parse(cls, text: str, redaction: Redaction | None = None) -> Self:
        """Return the command in `text`, whose words are split as in a shell.

        Raises:
            ValueError: If it is not a command. The message describes the allowed ones.

        """
        if "\0" in text:
            raise ValueError("a command without a NUL character")
        try:
            words = shlex.split(text)
        except ValueError:
            raise ValueError("a command that closes every quote and does not end with a backslash") from None
        if not words or not words[0]:
            raise ValueError('a program and its arguments, such as "rclone copy {path} remote:bucket/{log}/"')
        for placeholder in (each for word in words for each in _placeholders(word)):
            if placeholder not in _PLACEHOLDERS:
                raise ValueError(f"{{path}} and {{log}} as placeholders, not {{{placeholder}}}. {_BRACES}")
        return cls(tuple(words), redaction or Redaction())

    def for_file(self, path: Path, log: str) -> list[str]:
        """Return the words for a file of the log `log`. A value is a part of one word, whatever it contains."""
        return [word.format(path=str(path), log=log) for word in self.words]


def _placeholders(word: str) -> Iterator[str]:
    try:
        for _, name, form, conversion in Formatter().parse(word):
            if name is not None:
                yield name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
    except ValueError:
        raise ValueError(f"{{path}} and {{log}}, each with two braces. {_BRACES}") from None
