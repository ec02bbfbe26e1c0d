"""Usage errors in our words: without those of the library that checks options."""

from typing import Any

import typer
from typer.core import TyperGroup
from typing_extensions import override


class PlainGroup(TyperGroup):
    """A group of commands that says what is wrong with an option, and not who found it."""

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command; a wrong value raises `BadParameter` in plain words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as e:
            e.message = plain_usage_errors(e.message)
            raise


def plain_usage_errors(message: str) -> str:
    """Return a message without a validator's prefix: `Input should be …` becomes `it should be …`."""
    text = message.removeprefix("Value error, ")
    should = text.removeprefix("Input should be ")
    return text if should == text else f"it should be {should.partition(', unable to')[0]}"
