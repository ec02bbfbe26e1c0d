"""API keys: the rights of an agent that calls the HTTP server, and the file with the hashes of their secrets."""

import asyncio
import json
import os
import re
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from agentic_trading.clock import Clock
from agentic_trading.files import NoTomlError, locked, read_toml, read_within, replace_file
from agentic_trading.governance.limits import LARGEST
from agentic_trading.governance.policy import NAME, Policy
from agentic_trading.ids import random_key
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.limits import LLMBudget, nusd_from_usd
from agentic_trading.logger import get_logger
from agentic_trading.platform.config import ModelName, TenantId, Usd, provider_and_model
from agentic_trading.platform.errors import (
    ConfigError,
    ConfigProblem,
    OptionError,
    allowed_text,
    found_text,
)
from agentic_trading.platform.settings import FILE, load_settings
from agentic_trading.structured.feedback import near_miss

log = get_logger()

FILE_NAME: Final = "api-keys.toml"

KEY_PREFIX: Final = "agt_"
"""The first characters of a secret. The others are 64 hexadecimal digits, so that secret scanners can find it."""

READ_AGAIN_S: Final = 1.0
"""Seconds between checks of the file. A revoked key is valid until the next check."""

_HEADER: Final = (
    "# Written by `agentic-trading api-keys`, which removes comments. It has no secrets, only their hashes.\n"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_TARGET: Final = 256
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")

KeyState = Literal["valid", "expired", "revoked"]


# A validator raises the text of the allowed values, so that `allowed_text` can make every message.


def _digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError("the SHA-256 of a secret, in 64 lowercase hexadecimal digits")
    return text


def _moment(value: Any) -> datetime:
    try:
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC)
    except OverflowError:
        pass
    raise ValueError("a time with an offset, such as 2027-01-31T00:00:00Z")


def _workflow(workflow: EnvelopeWorkflow) -> EnvelopeWorkflow:
    if workflow is EnvelopeWorkflow.EXECUTION:
        raise ValueError(
            "analysis, planning, or general. An execution needs an answer that the gateway has validated"
        )
    return workflow


def _alias(name: str) -> str:
    if not _ALIAS.fullmatch(name):
        raise ValueError("1 to 128 letters, digits, and ._:/@+-, starting with a letter or digit")
    return name


def _target(name: str) -> str:
    if not name.isprintable() or len(name) > _MOST_TARGET:
        raise ValueError(f"PROVIDER/MODEL of at most {_MOST_TARGET} printable characters")
    return name


def _principal(name: str) -> str:
    if name and not NAME.fullmatch(name):
        raise ValueError("1 to 128 letters, digits, and ._@-, not starting with a dot or dash")
    return name


_Digest = Annotated[StrictStr, AfterValidator(_digest)]
_Moment = Annotated[datetime, BeforeValidator(_moment)]
_Target = Annotated[ModelName, AfterValidator(_target)]
_TARGET: Final = TypeAdapter(_Target)
_Models = dict[Annotated[StrictStr, AfterValidator(_alias)], _Target]


class ApiKey(BaseModel, frozen=True, extra="forbid"):
    """An API key: who its calls belong to, and the ceilings of each call. It has no secret, only hashes.

    Attributes:
        name: The name of the key.
        sha256: The hash of its secret.
        rotated: The hashes of earlier secrets, each with the end of its grace period.
        tenant: The tenant of its calls.
        agent: The agent id of its calls.
        workflow: Their workflow. Never an execution, because the gateway does not validate these answers.
        principal: The principal of the policy that it acts as. Empty means no principal.
        models: The allowed models by alias, as `PROVIDER/MODEL`. Empty allows every served model.
        max_output_tokens: The most output tokens of an attempt. A request for more is lowered.
        usd_per_call: The most US dollars of a call, with all its attempts.
        usd_per_trace, calls_per_trace: The most US dollars and calls of a trace.
        attempt_timeout_s: Time limit of an attempt, in seconds.
        park_s: The longest wait of a call for money that other calls hold, in seconds.
        json_schema: `pass` does not read answers. `validate` validates them against the client's schema, and
            `reask` also asks again after a rejected answer.
        stream: How a stream is answered. `whole` sends the events of a whole answer, and `through` those of the provider
            as they come.
        records_events: Whether the key may record events, such as orders and fills.
        created, expires, revoked: The times of its creation, its end and its revocation.

    """

    name: TenantId
    sha256: _Digest = Field(repr=False)
    rotated: Mapping[_Digest, _Moment] = Field(default_factory=dict, repr=False)
    tenant: TenantId
    agent: TenantId
    workflow: Annotated[EnvelopeWorkflow, AfterValidator(_workflow)] = EnvelopeWorkflow.GENERAL
    principal: Annotated[StrictStr, AfterValidator(_principal)] = ""
    models: _Models = Field(default_factory=dict)
    max_output_tokens: Annotated[StrictInt, Field(ge=1, le=LARGEST)] = 16_384
    usd_per_call: Usd | None = None
    usd_per_trace: Usd | None = None
    calls_per_trace: Annotated[StrictInt, Field(ge=0, le=LARGEST)] | None = None
    attempt_timeout_s: Annotated[StrictFloat, Field(gt=0, le=3600)] = 300.0
    park_s: Annotated[StrictFloat, Field(ge=0, le=3600)] = 20.0
    json_schema: Literal["pass", "validate", "reask"] = "validate"
    stream: Literal["whole", "through"] = "whole"
    records_events: StrictBool = False
    created: _Moment
    expires: _Moment | None = None
    revoked: _Moment | None = None

    @field_validator("stream")
    @classmethod
    def _stream(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "through" and info.data.get("json_schema") == "reask":
            raise ValueError(
                "whole for json_schema = reask, because an answer that was passed on cannot be asked again"
            )
        return mode

    @property
    def owner(self) -> str:
        """The owner of answers in memory. A file can give the name of a removed key to another tenant."""
        return f"{self.tenant}/{self.name}"

    def state(self, now: datetime) -> KeyState:
        """Return whether the key can be used at `now`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"

    def earlier_until(self, now: datetime) -> datetime | None:
        """Return the time until which an earlier secret is valid, or None after all grace periods."""
        return max((until for until in self.rotated.values() if until > now), default=None)

    def model_of(self, asked: str) -> tuple[str, str] | None:
        """Return the provider and model of the name in a request, or None if the key may not use it."""
        if self.models:
            target = self.models.get(asked)
            return None if target is None else provider_and_model(target)
        try:
            return provider_and_model(_TARGET.validate_python(asked))
        except ValidationError:
            return None

    def budget(self, max_output_tokens: int | None = None) -> LLMBudget:
        """Return the ceilings as the budget of an envelope.

        Args:
            max_output_tokens: The output tokens that the request asks for. None means the ceiling of the key.

        """
        usd = {"max_cost_nusd": self.usd_per_call, "max_trace_cost_nusd": self.usd_per_trace}
        limits = {name: nusd_from_usd(amount) for name, amount in usd.items() if amount is not None}
        if self.calls_per_trace is not None:
            limits["max_trace_calls"] = self.calls_per_trace
        asked = self.max_output_tokens if max_output_tokens is None else max_output_tokens
        return LLMBudget(max_output_tokens=min(asked, self.max_output_tokens), **limits)


class ApiKeys:
    """The API keys of a file. They follow its changes within `followed`.

    Creating it blocks, because it reads the file.

    Args:
        file: The file of the keys.
        clock: The time, by which keys expire.

    Attributes:
        problem: The reason why the file was not read last time, or None. The keys of the last good file stay valid.

    Raises:
        ConfigError: If the file is missing or invalid. The error lists all problems.

    Example:
        ```python
        keys = await asyncio.to_thread(ApiKeys, api_keys_file(None), SystemClock())
        keys.check(policy)
        async with keys.followed():
            key = keys.find(secret)  # None: answer 401
        ```

    """

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._policy: Policy | None = None
        self._signing: tuple[str, Callable[[], Collection[str] | None]] | None = None
        self._stamp = _stamp_of(file)
        self._keys: Mapping[str, ApiKey] = {}
        self._by_hash: Mapping[str, tuple[ApiKey, datetime | None]] = {}
        self.problem: str | None = None
        self._renew(read_api_keys(file))

    @property
    def names(self) -> Sequence[str]:
        """The names of all keys, also of expired and revoked ones."""
        return tuple(self._keys)

    @property
    def principals(self) -> frozenset[str]:
        """The principals of the keys that can be used now. Empty for those without one."""
        return frozenset(key.principal for key in self._usable(self._keys))

    def check_signing(self, sign_as: str, signers: Callable[[], Collection[str] | None]) -> None:
        """Check that the principals of keys can sign, as `signing_problem` does, now and after each change of the file.

        Keys that have expired or are revoked are not checked. Blocks.

        Args:
            sign_as: The principal of the configuration.
            signers: Reads the principals with a signing key. They are None if messages are not signed.

        Raises:
            ConfigError: If a principal cannot sign.
            SigningKeyError: If `signers` raises it.

        """
        self._refuse(self._keys, _signing_check(sign_as, signers))
        self._signing = sign_as, signers

    def check(self, policy: Policy | None) -> None:
        """Check the keys against a policy, now and after each change of the file.

        Keys that have expired or are revoked are not checked.

        Raises:
            ConfigError: If the policy names principals, and a key has none of them.

        """
        self._refuse(self._keys, partial(principal_problem, policy=policy))
        self._policy = policy

    def find(self, secret: str) -> ApiKey | None:
        """Return the key of a secret, or None if it is unknown, expired or revoked."""
        # The time of a lookup depends on the hash only. It does not help to guess a secret of 256 random bits, so
        # a comparison in constant time has no use here.
        key, until = self._by_hash.get(_hash_of(secret), (None, None))
        now = self._clock.now()
        if key is None or key.state(now) != "valid" or (until is not None and until <= now):
            return None
        return key

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Reload the file when it changes, while the block runs."""
        # A TaskGroup would raise an error of the block, such as a port in use, as an ExceptionGroup.
        task = asyncio.Task(self._follow(), name="api-keys")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self) -> None:
        while True:
            await self._clock.sleep(READ_AGAIN_S)
            try:
                found = await asyncio.to_thread(self._changed)
            except ConfigError as e:
                self._report(str(e))
            except Exception as e:  # noqa: BLE001 - any other error must not end the server
                self._report(f"{type(e).__name__}: {e}")
            else:
                self.problem = None
                if found is not None:
                    self._renew(found)
                    log.info("api_keys_renewed", names=sorted(found))

    def _report(self, problem: str) -> None:
        # The last keys stay valid, because a broken file would otherwise stop all agents.
        if problem != self.problem:
            log.warning("api_keys_not_renewed", reason=problem)
        self.problem = problem

    def _changed(self) -> Mapping[str, ApiKey] | None:
        """Return the keys if the file has changed since it was read. Blocks."""
        stamp = _stamp_of(self._file)
        if stamp == self._stamp:
            return None
        keys = read_api_keys(self._file)
        self._refuse(keys, partial(principal_problem, policy=self._policy))
        if self._signing is not None:
            self._refuse(keys, _signing_check(*self._signing))
        self._stamp = stamp
        return keys

    def _refuse(self, keys: Mapping[str, ApiKey], check: Callable[[ApiKey], tuple[str, str] | None]) -> None:
        """Raise `ConfigError` if a check finds a problem of a key that can be used now."""
        problems = [
            ConfigProblem(str(self._file), f"keys.{key.name}.principal", *problem)
            for key in self._usable(keys)
            if (problem := check(key)) is not None
        ]
        if problems:
            raise ConfigError(problems)

    def _usable(self, keys: Mapping[str, ApiKey]) -> Iterator[ApiKey]:
        now = self._clock.now()
        return (key for key in keys.values() if key.state(now) == "valid")

    def _renew(self, keys: Mapping[str, ApiKey]) -> None:
        found: dict[str, tuple[ApiKey, datetime | None]] = {}
        for key in keys.values():
            found |= {digest: (key, until) for digest, until in key.rotated.items()}
            found[key.sha256] = key, None
        self._keys, self._by_hash = keys, found


def api_keys_file(config: Path | None) -> Path:
    """Return the file of API keys, in the folder of the configuration file.

    Args:
        config: The configuration file. None means the file named by `AGENTIC_CONFIG`, or the one in the working
            directory.

    Raises:
        SettingsError: If an environment variable is wrong.

    """
    return (config or load_settings().config or FILE).expanduser().with_name(FILE_NAME)


def new_api_key(
    name: str,
    now: datetime,
    rights: Mapping[str, Any],
    *,
    option_of: Callable[[str], str] = lambda field: field,
) -> tuple[ApiKey, str]:
    """Return a new key and its secret.

    Args:
        name: The name of the key.
        now: The time of its creation.
        rights: Other fields of `ApiKey`.
        option_of: Returns the option of a field, for messages.

    Raises:
        ConfigError: If fields are wrong. The error lists all of them.

    """
    secret = _new_secret()
    fields = {**rights, "name": name, "sha256": _hash_of(secret), "created": now}
    try:
        return ApiKey.model_validate(fields), secret
    except ValidationError as e:
        wrong = _wrong_fields(e)
        raise ConfigError([ConfigProblem(option_of(field), "", *texts) for field, *texts in wrong]) from None


@dataclass(frozen=True, slots=True)
class ApiKeyFile:
    """Reads and changes a file of keys. Only its owner may read it. All methods block.

    A change replaces the file atomically, under a lock of all processes of the machine.

    Raises:
        ConfigError: If the file is invalid or cannot be written. It is then unchanged.
        OptionError: If the name of a key is wrong.

    """

    path: Path

    def read(self) -> Mapping[str, ApiKey]:
        """Return the keys by name. A missing file has no keys."""
        try:
            return read_api_keys(self.path)
        except ConfigError as e:
            if isinstance(e.__cause__, FileNotFoundError):
                return {}
            raise

    def add(self, key: ApiKey) -> None:
        """Add a key with a new name."""
        with self._changed() as keys:
            if key.name in keys:
                allowed = (
                    "a new name, also after a revocation. `api-keys rotate` makes a new secret for a key"
                )
                raise OptionError("NAME", f"{key.name!r}, which {self.path} already has", allowed)
            keys[key.name] = key

    def revoke(self, name: str, now: datetime) -> ApiKey:
        """Revoke a key, and return it. A key that is revoked already keeps its time."""
        self._of(name, self.read())  # because the lock would create the folder of a wrong path
        with self._changed() as keys:
            key = self._of(name, keys)
            keys[name] = key.model_copy(update={"revoked": key.revoked or now})
            return keys[name]

    def rotate(self, name: str, now: datetime, grace: timedelta) -> tuple[ApiKey, str]:
        """Give a key a new secret, and return both. Earlier secrets end after `grace`, or sooner."""
        self._of(name, self.read())
        with self._changed() as keys:
            key = self._of(name, keys)
            if (state := key.state(now)) != "valid":
                raise OptionError("NAME", f"{name!r}, which is {state}", "a valid key, or a new one")
            secret, end = _new_secret(), now + grace
            earlier = {**key.rotated, key.sha256: end}
            ends = {digest: min(until, end) for digest, until in earlier.items()}
            rotated = {digest: until for digest, until in ends.items() if until > now}
            keys[name] = key.model_copy(update={"sha256": _hash_of(secret), "rotated": rotated})
            return keys[name], secret

    def _of(self, name: str, keys: Mapping[str, ApiKey]) -> ApiKey:
        if name in keys:
            return keys[name]
        near = near_miss(name, keys)
        hint = f". Did you mean {near}?" if near else ""
        was = f"{name!r:.200}, which {self.path} does not have"
        raise OptionError("NAME", was, (", ".join(keys) or "none: create a key first") + hint)

    @contextmanager
    def _changed(self) -> Generator[dict[str, ApiKey]]:
        """Yield the keys, and write them back unless the block raises."""
        path = Path(os.path.realpath(self.path))  # so that a link stays a link
        try:
            with locked(path.with_name(f"{path.name}.lock"), private=True):
                keys = dict(ApiKeyFile(path).read())
                yield keys
                replace_file(path, toml_of(keys.values()).encode(), private=True)
        except OSError as e:
            found, allowed = (
                f"not writable ({e.strerror})",
                "a file of yours, in a folder that you can write to",
            )
            raise ConfigError([ConfigProblem(str(e.filename or self.path), "", found, allowed)]) from e


def read_api_keys(file: Path) -> Mapping[str, ApiKey]:
    """Return the keys of a file by name. Blocks.

    Raises:
        ConfigError: If the file is missing or invalid. The error lists all problems.

    """
    try:
        tables = read_toml(file)
    except OSError as e:
        raise _unreadable(file, e) from e
    except NoTomlError as e:
        found = f"not valid TOML ({e})"
        raise ConfigError([ConfigProblem(str(file), "the file", found, "a TOML file in UTF-8")]) from e
    keys: dict[str, ApiKey] = {}
    problems = list(_read_tables(file, tables, keys))
    owners: dict[str, str] = {}
    for key in keys.values():
        for digest in (key.sha256, *key.rotated):
            if (owner := owners.setdefault(digest, key.name)) != key.name:
                found, place = f"the same as that of {owner}", f"keys.{key.name}.sha256"
                problems.append(ConfigProblem(str(file), place, found, "a different secret for each key"))
    if problems:
        raise ConfigError(problems)
    return keys


def _read_tables(file: Path, tables: Mapping[str, Any], keys: dict[str, ApiKey]) -> Iterator[ConfigProblem]:
    """Add the keys of a file to `keys`, and yield its problems."""
    for unknown in tables.keys() - {"keys"}:
        yield ConfigProblem(str(file), f"{unknown!r:.100}", "an unknown key", "keys")
    rows = tables.get("keys", {})
    if not isinstance(rows, Mapping):
        yield ConfigProblem(str(file), "keys", found_text((), rows), "tables, each [keys.NAME]")
        return
    for name, row in rows.items():
        place = f"keys.{name if NAME.fullmatch(name) else repr(name)[:100]}"
        if not isinstance(row, Mapping) or "name" in row:
            found = "a table with a name" if isinstance(row, Mapping) else found_text((), row)
            yield ConfigProblem(str(file), place, found, f"a table with {', '.join(_FIELDS)}")
            continue
        try:
            keys[name] = ApiKey.model_validate({**row, "name": name})
        except ValidationError as e:
            yield from (
                ConfigProblem(str(file), place if field == "name" else f"{place}.{field}", found, allowed)
                for field, found, allowed in _wrong_fields(e)
            )


def _wrong_fields(error: ValidationError) -> Iterator[tuple[str, str, str]]:
    """Yield each wrong field of an error of `ApiKey`, with its value and the allowed ones. Hashes are hidden."""
    for each in error.errors(include_url=False):
        field = str(each["loc"][0])
        match each["type"]:
            case "missing":
                yield field, "missing", f"a value for {field}"
            case "extra_forbidden":
                near = near_miss(field, _FIELDS)
                yield (
                    field,
                    "an unknown key",
                    ", ".join(_FIELDS) + (f". Did you mean {near}?" if near else ""),
                )
            case _:
                yield field, found_text((field,), each["input"]), allowed_text(each)


_FIELDS: Final = tuple(name for name in ApiKey.model_fields if name != "name")


def principal_problem(key: ApiKey, policy: Policy | None) -> tuple[str, str] | None:
    """Return the wrong principal of a key and the allowed ones, or None if the policy allows it."""
    if policy is None or policy.principals is None or key.principal in policy.principals:
        return None
    found = repr(key.principal) if key.principal else f"not set, but {policy.source} names principals"
    return found, ", ".join(policy.principals)


def signing_problem(key: ApiKey, sign_as: str, signers: Collection[str] | None) -> tuple[str, str] | None:
    """Return the principal of a key that cannot sign and the allowed ones, or None if it can.

    Args:
        key: The key.
        sign_as: The principal of the configuration, which a key without one acts as.
        signers: The principals with a signing key. None if messages are not signed.

    """
    principal = key.principal or sign_as
    if signers is None:
        if principal == sign_as:
            return None
        allowed = (
            f"{sign_as or 'none'}, or set principals_folder to a folder with a signing key of this principal"
        )
        return f"{principal!r}, but messages are not signed", allowed
    if principal in signers:
        return None
    found = f"{principal!r}, which has no signing key" if principal else "not set, and sign_as is not set"
    return found, ", ".join(
        sorted(signers)
    ) or "none: create a signing key with `agentic-trading keys create`"


def _signing_check(
    sign_as: str, signers: Callable[[], Collection[str] | None]
) -> Callable[[ApiKey], tuple[str, str] | None]:
    """Return the check of a key's principal. The signing keys are read once for all keys."""
    return partial(signing_problem, sign_as=sign_as, signers=signers())


def toml_of(keys: Iterable[ApiKey]) -> str:
    """Return the text of a file with these keys."""
    lines = [_HEADER]
    for key in keys:
        lines.append(f"[keys.{_text(key.name)}]")
        values = key.model_dump(exclude={"name"}, exclude_defaults=True)
        lines += [f"{field} = {_value(value)}" for field, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case Mapping():
            return f"{{ {', '.join(f'{_text(name)} = {_value(inner)}' for name, inner in value.items())} }}"
        case Decimal():
            return _text(f"{value:f}")
        case str():
            return _text(value)
        case _:
            return str(value)


def _text(text: str) -> str:
    # A JSON string of printable characters is a TOML string.
    return json.dumps(text, ensure_ascii=False)


def _new_secret() -> str:
    return KEY_PREFIX + random_key().decode()


def _hash_of(secret: str) -> str:
    # A slow hash would cost each call, and does not make 256 random bits harder to guess.
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _stamp_of(file: Path) -> tuple[int, int, int]:
    """Return a value that changes when the file is replaced or edited. Blocks. Raises `ConfigError`."""
    try:
        status = read_within(file, file.stat)
    except OSError as e:
        raise _unreadable(file, e) from e
    return status.st_ino, status.st_mtime_ns, status.st_size


def _unreadable(file: Path, e: OSError) -> ConfigError:
    allowed = "a file that `agentic-trading api-keys create` has written"
    found = "missing" if isinstance(e, FileNotFoundError) else f"unreadable ({e.strerror})"
    return ConfigError([ConfigProblem(str(file), "", found, allowed)])
