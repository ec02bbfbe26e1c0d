"""What every log and index can spell: text that UTF-8 has, moments that UTC has, counts that JSON and SQLite keep exact."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BeforeValidator, Field

LARGEST_COUNT = 2**53
"""The largest whole number that JSON readers, Lua and SQLite all keep exact."""
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 12, 30, tzinfo=UTC)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def legible(value: Any) -> Any:
    """Return `value` with each lone surrogate in its texts, however deep, as U+FFFD; nothing else is changed."""
    if isinstance(value, str):
        return value if value.isascii() else _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {legible(key): legible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [legible(item) for item in value]
    return value


def _refused_again(value: Any) -> Any:
    return value if not isinstance(value, str) or value.isascii() else _LONE_SURROGATE.sub("\0", value)


Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
PositiveCount = Annotated[int, Field(gt=0, le=LARGEST_COUNT)]
Moment = Annotated[AwareDatetime, Field(ge=EARLIEST, le=LATEST)]
"""A time that has a spelling in UTC, wherever its clock stood."""
Text = Annotated[str, BeforeValidator(legible)]
"""Text of a stranger; what UTF-8 cannot spell is U+FFFD."""
AnswerText = Annotated[str, BeforeValidator(_refused_again)]
"""Text of an answer; what UTF-8 cannot spell is U+0000, which no JSON holds raw: who reads it again refuses it again."""
Legible = Annotated[Any, BeforeValidator(legible)]
