"""Numbers in sentences."""


def pluralize(number: int, noun: str) -> str:
    """Spell how many there are: `1 bar`, `2,576 bars`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
