"""Read the environment and the configuration file. No other module reads the environment."""

import getpass
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import BaseSettings

from agentic_trading.errors import TradingError
from agentic_trading.files import NoTomlError, read_toml
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.platform.config import (
    LoadedFrom,
    PlatformConfig,
    keys_at,
)
from agentic_trading.platform.errors import ConfigError, ConfigProblem
from agentic_trading.structured.feedback import near_miss

PREFIX = "AGENTIC_"
REPLAY_FROM: Final = "AGENTIC_REPLAY_FROM"
REPLAY_LOGS: Final = "AGENTIC_REPLAY_LOGS"
WEIGHTS_FOLDER: Final = Path("~/.cache/agentic-trading/models")

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["human", "json"]


class SettingsError(TradingError, ValueError):
    """Environment variables are invalid.

    Attributes:
        problems: One text per variable, with the allowed values.

    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class Settings(
    BaseSettings, frozen=True, env_prefix=PREFIX, env_ignore_empty=True, hide_input_in_errors=True
):
    """Settings of the commands from the environment. An empty variable counts as absent.

    Attributes:
        config: The file that `load_config` reads.
        store: The log, or the folder of a session, that `trace` and `spend` read. None means the newest
            session in `runs`.
        runs: The folder for sessions that are started without a folder.
        log_level: The lowest level of the program's log.
        log_format: The format of the program's log.
        replay_from: The record whose answers `local_gateway` gets. `replay run` sets it for its program.
        replay_logs: The folder of the logs of these gateways.

    """

    config: Path | None = None
    store: Path | None = None
    runs: Path = Path("runs")
    log_level: LogLevel = "warning"
    log_format: LogFormat = "human"
    replay_from: Path | None = None
    replay_logs: Path | None = None


def load_settings() -> Settings:
    """Read the environment.

    Raises:
        SettingsError: If a variable is invalid, or an AGENTIC_ variable is unknown. The error lists all of
            them.

    """
    unread = [
        f"{name} is {_UNREAD}. Allowed: {_alternatives(name)}"
        for name in _variables()
        if _place_of(name) is None
    ]
    try:
        settings = Settings()
    except ValidationError as e:
        raise SettingsError([*map(_problem, e.errors(include_url=False)), *unread]) from None
    if unread:
        raise SettingsError(unread)
    return settings


def replay_folders() -> tuple[Path, Path] | None:
    """Return the record and the folder of logs of a replay by `replay run`, or None outside one."""
    record, logs = os.environ.get(REPLAY_FROM), os.environ.get(REPLAY_LOGS)
    return (Path(record), Path(logs)) if record and logs else None


def replay_environment(record: Path, logs: Path, url: str | None) -> dict[str, str]:
    """Return the environment of a program on its record, with the server of the SDKs at `url`."""
    urls = {} if url is None else {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
    return {**os.environ, **urls, REPLAY_FROM: str(record), REPLAY_LOGS: str(logs)}


def user_name() -> str:
    """Return the account name of this process, or `uid N` if the account has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the account has no name
        return f"uid {os.getuid()}"


def _problem(error: Any) -> str:
    name = "_".join(str(part) for part in error["loc"]).upper()
    allowed = error.get("ctx", {}).get("expected") or error["msg"]
    return f"{PREFIX}{name} is {error['input']!r}. Allowed: {allowed}"


FILE: Final = Path("agentic-trading.toml")
"""The configuration file that is read if it exists and no other is named."""

_PLACES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "LEDGER_URL": ("ledger", "url"),
    "MODELS_DIR": ("weights_folder",),
    "POLICY_FILE": ("policy",),
    "SECRETS_DIR": ("secrets_folder",),
})
"""Variables with an older name. Their values have no second variable."""

_COMMANDS: Final = frozenset(Settings.model_fields)
_TABLES: Final = frozenset({"ledger", "bus", "models", "providers", "fallback", "tenants", "checks", "rules"})
_NAMED: Final = ("providers", "tenants")
"""Tables whose keys are names. A variable changes existing entries, and does not add any."""

_PATHS: Final = frozenset({
    "folder", "models_file", "prices_file", "weights_folder", "policy", "principals_folder", "secrets_folder",
    "ca_file", "certificate_file", "key_file", "password_file",
})  # fmt: skip


def load_config(
    path: Path | str | None = None, *, flags: Mapping[str, str] = MappingProxyType({}), **overrides: Any
) -> PlatformConfig:
    """Load a configuration from a file, the environment and arguments. Later sources take precedence.

    Tables are merged, and other values replaced. Variables are named `AGENTIC_` and the place of the value,
    with `__` between its parts, such as `AGENTIC_BUS__URL`. They change providers and tenants of the file or
    of `overrides`, and add none.

    Args:
        path: The file. None means the file named by `AGENTIC_CONFIG`, or `agentic-trading.toml` in the
            working directory if it exists. Paths in the file are relative to its folder.
        flags: The command option of each override, for messages.
        **overrides: Fields of `PlatformConfig`. None is ignored.

    Returns:
        The configuration. `config.origin_of(place)` returns the source of each value.

    Raises:
        ConfigError: If the file cannot be read, or a value or variable is invalid. The error lists all
            problems.

    Example:
        config = load_config("agentic-trading.toml", name="desk-us")

    """
    merged, variables = _MergedConfig(), _variables()
    given = {name: _plain(value) for name, value in overrides.items() if value is not None}
    merged.add({"weights_folder": _expanded(str(WEIGHTS_FOLDER))}, "default")
    merged.add_file(path, variables)
    merged.add_variables(variables, given)
    for name, value in given.items():
        merged.add({name: value}, flags.get(name, "argument"))
    return merged.config()


@dataclass(slots=True)
class _MergedConfig:
    """Merged values, the origin of each by its place, and the problems so far."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def config(self) -> PlatformConfig:
        """Return the configuration. Raises `ConfigError` with all problems."""
        try:
            loaded = LoadedFrom(self.origins, _secrets(_table(self.values, "providers")))
            config = PlatformConfig.model_validate(self.values, context=loaded)
        except ConfigError as e:
            raise ConfigError([*self.problems, *e.problems]) from None
        if self.problems:
            raise ConfigError(self.problems)
        return config

    def add(self, values: Mapping[str, Any], origin: str, *place: str) -> None:
        """Merge `values` into the table at `place`. Tables are merged, and other values replaced."""
        table = self.values
        for part in place:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                return  # the wrong value stays, so that validation reports it
        for name, value in values.items():
            where = (*place, str(name))
            if isinstance(value, Mapping) and isinstance(table.setdefault(name, {}), dict):
                self.origins.setdefault(".".join((*where, "")), origin)
                self.add(value, origin, *where)
            else:
                table[name] = value
                self.origins[".".join(where)] = origin

    def add_file(self, path: Path | str | None, variables: Mapping[str, str]) -> None:
        """Add the values of the named file, or of the default file if it exists."""
        named = Path(path) if path is not None else None
        origin = "--config" if named else f"{PREFIX}CONFIG"
        if named is None and (text := variables.get(origin)):
            named = _expanded(text)
        if named is None and not FILE.is_file():
            return
        file = named or FILE
        try:
            document = read_toml(file)
        except OSError as e:
            self._note(origin, "", f"{file}, which cannot be read ({e.strerror})", "a readable TOML file")
            return
        except NoTomlError as e:
            self._note(str(file), "the file", f"not valid TOML ({e})", "a TOML file")
            return
        self.add({name: _located(name, value, file.parent) for name, value in document.items()}, str(file))

    def add_variables(self, variables: Mapping[str, str], given: Mapping[str, Any]) -> None:
        """Add values from the environment. Providers and tenants must be in the file or in `given`."""
        known = {table: {*_table(self.values, table), *_table(given, table)} for table in _NAMED}
        for provider in sorted(known["providers"] & set(LLMProvider)):
            variable = f"{provider}_base_url".upper()
            if address := os.environ.get(variable):
                self.add({"base_url": address}, variable, "providers", provider)
        for name, text in variables.items():
            place = _place_of(name)
            if place is None:
                self._note(name, "", _UNREAD, _alternatives(name))
            elif place[0] not in _NAMED:
                self._add_text(name, text, place)
            elif owner := _same_name(place[1], known[place[0]]):
                self._add_text(name, text, (place[0], owner, *place[2:]))
            else:
                self._refuse_new(name, place, sorted(known[place[0]]))

    def _add_text(self, variable: str, text: str, place: tuple[str, ...]) -> None:
        if place[0] not in PlatformConfig.model_fields:
            return  # a setting of the commands, read by `Settings`
        value: Any = text
        if (place[-1] in {"to", "on"} and place[0] == "fallback") or place == ("workflows",):
            value = [part.strip() for part in text.split(",")]
        elif place[-1] in {"concurrency", "calls", "max_message_bytes"} and text.isdecimal():
            # A longer text is left to validation, because `int` would raise here.
            value = int(text) if len(text) <= _MOST_DIGITS else text
        self.add(
            {place[-1]: _located(place[-1], value, Path()) if place[0] not in _NAMED else value},
            variable,
            *place[:-1],
        )

    def _refuse_new(self, variable: str, place: tuple[str, ...], known: list[str]) -> None:
        what = place[0].removesuffix("s")
        near = near_miss(place[1], known)
        hint = f". Did you mean {near}?" if near else ""
        found = f"not a {what} of the file or the code"
        self._note(variable, f"{place[0]}.{place[1]}", found, f"{', '.join(known) or 'none'}{hint}")

    def _note(self, origin: str, place: str, found: str, allowed: str) -> None:
        self.problems.append(ConfigProblem(origin, place, found, allowed))


def _variables() -> dict[str, str]:
    """Return the set variables with our prefix. An empty variable counts as absent."""
    return {name: text for name, text in sorted(os.environ.items()) if name.startswith(PREFIX) and text}


def _secrets(providers: Mapping[str, Any]) -> dict[str, SecretStr]:
    """Return the provider keys that the environment contains, by provider."""
    found = {}
    for name, row in providers.items():
        secret = _table({"row": row}, "row").get("secret")
        text = os.environ.get(secret_variable(secret if isinstance(secret, str) else f"{name}_api_key"))
        if text:
            found[name] = SecretStr(text)
    return found


def secret_variable(secret: str) -> str:
    """Return the variable of a secret: `house_token` is in HOUSE_TOKEN."""
    return re.sub(r"[^A-Z0-9]", "_", secret.upper())


_UNREAD: Final = "not a known variable"
_MOST_DIGITS: Final = 20
"""Digits of a 64-bit integer. `int` raises an error above 4,300 digits."""


def _place_of(variable: str) -> tuple[str, ...] | None:
    """Return the place of the value of a variable, or None if the variable is unknown."""
    name = variable.removeprefix(PREFIX)
    if name in _PLACES:
        return _PLACES[name]
    place = tuple(name.lower().split("__"))
    if place in _PLACES.values() or not all(place):
        return None
    match place:
        case (one,):
            is_read = one in _COMMANDS or (one in PlatformConfig.model_fields and one not in _TABLES)
        case ("models", _):
            is_read = True
        case ("bus", key):
            is_read = key in keys_at(("bus",))
        case ("providers", _, "options", _):
            is_read = True
        case ("providers" | "tenants" | "fallback", _, key):
            is_read = key in keys_at(place[:-1]) and key not in {"options", "models"}
        case _:
            is_read = False
    return place if is_read else None


def _alternatives(variable: str) -> str:
    """Return the known variables, and the nearest one as a suggestion."""
    fields = {*PlatformConfig.model_fields, *_COMMANDS} - _TABLES - {place[-1] for place in _PLACES.values()}
    single = sorted({*(name.upper() for name in fields), *_PLACES})
    nested = [
        "BUS__KEY",
        "MODELS__WORKFLOW",
        "PROVIDERS__NAME__KEY",
        "FALLBACK__WORKFLOW__KEY",
        "TENANTS__ID__KEY",
    ]
    near = near_miss(variable.removeprefix(PREFIX), single)
    hint = f". Did you mean {PREFIX}{near}?" if near else ""
    return ", ".join(f"{PREFIX}{name}" for name in (*single, *nested)) + hint


def _same_name(spelled: str, names: Iterable[str]) -> str:
    """Return the name that a variable spells without capitals, dots and dashes.

    Empty if none or several match.
    """
    same = [
        name
        for name in names
        if re.sub(r"[^a-z0-9]", "_", name.lower()) == re.sub(r"[^a-z0-9]", "_", spelled)
    ]
    return same[0] if len(same) == 1 else ""


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = values.get(name)
    return table if isinstance(table, Mapping) else {}


def _plain(value: Any) -> Any:
    """Return an override as plain values, so that it can be merged. Unset fields of models are left out."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def _located(name: str, value: Any, folder: Path) -> Any:
    """Resolve a path of the configuration against `folder`. Other values are unchanged."""
    if name == "bus" and isinstance(value, Mapping):
        return {key: _located(key, inner, folder) for key, inner in value.items()}
    return folder / _expanded(value) if name in _PATHS and isinstance(value, str) and value else value


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # the home folder is unknown: reading the path will report it
        return Path(text)
