"""The only reader of the environment: what is set there, checked once at start."""

from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from agentic_trading.errors import TradingError

PREFIX = "AGENTIC_"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["human", "json"]


class SettingsError(TradingError, ValueError):
    """Environment variables hold what they must not; `problems` names each with what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


class Settings(BaseSettings, frozen=True, env_prefix=PREFIX, env_ignore_empty=True):
    """What the environment says; an empty variable counts as absent.

    `store` is the log, or the folder of a session, that `trace` and `spend` read; without it they take the newest
    session below `runs`, where sessions go that are given no folder.
    """

    store: Path | None = None
    runs: Path = Path("runs")
    models_file: Path | None = None
    log_level: LogLevel = "warning"
    log_format: LogFormat = "human"


def load_settings() -> Settings:
    """Read the environment; raises `SettingsError` that names every wrong variable."""
    try:
        return Settings()
    except ValidationError as e:
        raise SettingsError([_problem(error) for error in e.errors(include_url=False)]) from e


def _problem(error: Any) -> str:
    variable = PREFIX + "_".join(str(part) for part in error["loc"]).upper()
    allowed = error.get("ctx", {}).get("expected") or error["msg"]
    return f"{variable} is {error['input']!r}; allowed: {allowed}"
