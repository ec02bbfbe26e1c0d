"""The analyst's instructions, each version a file that is never edited once it is released."""

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from agentic_trading.canonical import sha256_hex


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its version: the first 16 hex digits of the SHA-256 over its bytes."""

    text: str
    version: str


def load_prompt(name: str) -> Prompt:
    """Read a shipped prompt; the version changes with every byte of it."""
    raw = files("agentic_trading.desk.analysis").joinpath("prompts", f"{name}.md").read_bytes()
    return Prompt(text=raw.decode(), version=sha256_hex(raw)[:16])


# Read at import, like the code that it belongs to: an agent made on a running loop must not read files.
CMT_ASSESSMENT_PROMPT: Final = load_prompt("cmt_assessment.v1")
