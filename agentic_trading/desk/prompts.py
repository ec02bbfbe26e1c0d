"""Instructions for models, each version a shipped file that is not edited once it is released."""

from dataclasses import dataclass
from importlib.resources import files

from agentic_trading.canonical import sha256_hex


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its version: the first 16 hex digits of the SHA-256 over its bytes."""

    text: str
    version: str


def load_prompt(package: str, name: str) -> Prompt:
    """Read `prompts/<name>.md` of an agent's package; the version changes with every byte of it."""
    raw = files(package).joinpath("prompts", f"{name}.md").read_bytes()
    return Prompt(text=raw.decode(), version=sha256_hex(raw)[:16])
