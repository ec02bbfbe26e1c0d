"""The only reader of the environment: what is set there, checked once at start."""

import getpass
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never, get_args
from zoneinfo import ZoneInfo

import structlog
from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode
from structlog.types import Processor

from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMProvider

PREFIX = "AGENTIC_"

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["human", "json"]
_ProviderField = Literal["api_key", "base_url"]


class SettingsError(TradingError, ValueError):
    """Environment variables hold what they must not; `problems` names each with what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problems))


class ProviderVariables(BaseModel, frozen=True):
    """What the variables of one provider hold, such as `OPENAI_API_KEY` and `OPENAI_BASE_URL`; never shown."""

    api_key: SecretStr | None = None
    base_url: str | None = Field(default=None, repr=False)

    @field_validator("base_url")
    @classmethod
    def _web_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("an address that begins with http:// or https://")
        return url


def variable_of(provider: str, field: _ProviderField) -> str:
    """Return the environment variable of a provider, by the name that the vendors' own tools read."""
    return f"{provider}_{field}".upper()


class Settings(
    BaseSettings, frozen=True, env_prefix=PREFIX, env_ignore_empty=True, hide_input_in_errors=True
):
    """What the environment says; an empty variable counts as absent.

    `store` is the log, or the folder of a session, that `trace` and `spend` read; without it they take the newest
    session below `runs`, where sessions go that are given no folder. `models_file` and `prices_file` hold rows in
    place of the shipped ones or in addition. `models_dir` is the folder of weights, `secrets_dir` that of keys, in files.
    `ledger_url` is a Redis server whose ledger workers share, `policy_file` says who may do what, `zone`
    where days and months begin. `providers` has the variables that the vendors named, without a prefix.
    """

    store: Path | None = None
    runs: Path = Path("runs")
    models_file: Path | None = None
    prices_file: Path | None = None
    models_dir: Path = Path("~/.cache/agentic-trading/models")
    secrets_dir: Path | None = None
    ledger_url: str | None = Field(default=None, repr=False)
    policy_file: Path | None = None
    zone: str = "UTC"
    log_level: LogLevel = "warning"
    log_format: LogFormat = "human"
    providers: Annotated[Mapping[str, ProviderVariables], NoDecode] = {}

    def of(self, provider: str) -> ProviderVariables:
        """Return the key and the address that the environment has for a provider."""
        return self.providers.get(provider, ProviderVariables())

    @model_validator(mode="before")
    @classmethod
    def _read_providers(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read the variables of every provider; they have no prefix, as other tools read them too."""
        given = {**os.environ, **values}
        found: dict[str, dict[str, Any]] = {provider: {} for provider in LLMProvider}
        for provider in LLMProvider:
            for field in get_args(_ProviderField):
                values.pop(variable_of(provider, field), None)
                if value := given.get(variable_of(provider, field)):
                    found[provider][field] = value
        return {**values, "providers": found}

    @field_validator("models_file", "prices_file", "models_dir", "secrets_dir", "policy_file")
    @classmethod
    def _home_spelled_out(cls, path: Path | None) -> Path | None:
        """Take `~` for the home folder: not every program that sets a variable does."""
        try:
            return path and path.expanduser()
        except RuntimeError as e:
            raise ValueError("a path without ~, as the home folder is not known") from e

    @field_validator("ledger_url")
    @classmethod
    def _redis_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("an address that begins with redis://, rediss:// or unix://")
        return url

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ValueError, OSError, LookupError) as e:
            raise ValueError("the name of a time zone, such as UTC or America/New_York") from e
        return name


def load_settings() -> Settings:
    """Read the environment; raises `SettingsError` that names every wrong variable."""
    try:
        return Settings()
    except ValidationError as e:
        raise SettingsError([_problem(error) for error in e.errors(include_url=False)]) from None


def user_name() -> str:
    """Return the name of the account that runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        return f"uid {os.getuid()}"


def _problem(error: Any) -> str:
    name = "_".join(str(part) for part in error["loc"]).upper()
    of_provider = name.removeprefix("PROVIDERS_")
    allowed = error.get("ctx", {}).get("expected") or error["msg"].removeprefix("Value error, ")
    if of_provider != name or name == "LEDGER_URL":  # not shown: an address may have a key in it
        shown = of_provider if of_provider != name else f"{PREFIX}{name}"
        return f"{shown} holds what it must not; allowed: {allowed}"
    return f"{PREFIX}{name} is {error['input']!r}; allowed: {allowed}"


def configure_logging(level: LogLevel, form: LogFormat) -> None:
    """Send events of at least `level` to standard error; standard output stays the commands' own."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *_renderers(form),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=False,
    )


def _to_standard_error(*_names: Any) -> structlog.PrintLogger:
    # Looked up for each logger: a progress bar takes standard error over while it is drawn.
    return structlog.PrintLogger(sys.stderr)


def _renderers(form: LogFormat) -> list[Processor]:
    match form:
        case "human":
            return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        case "json":
            return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
        case _:
            assert_never(form)


def start() -> Settings:
    """Return the settings, and have the log look as they say; raises `SettingsError` for a wrong variable."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    return settings
