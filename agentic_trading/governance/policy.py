"""A policy: the models, tools and ceilings of each principal, and the file that contains it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import ErrorDetails

from agentic_trading.files import NoTomlError, read_toml
from agentic_trading.governance.errors import PolicyError
from agentic_trading.governance.limiter import MOST_A_MINUTE, Deployment, RateLimits
from agentic_trading.governance.limits import ANY, LARGEST, Limit, ScopeKind, Window, agent_of
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import close_name
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.event import PLATFORM
from agentic_trading.llm.limits import NANO

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}")
"""Valid names of principals and keys. They fit into a header and a file name."""

MOST_PATTERN: Final = 256
"""The maximum length of a pattern, because each call is matched against it."""

_USD = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")
_WILD = frozenset("*?[")
_PROVIDER = re.compile(r"[a-z*?[][a-z0-9._*?\[\]!-]{0,63}")
_NAME_WORDS: Final = "a name of 1 to 128 letters, digits and ._@-, no dot or dash in front"
_USD_WORDS: Final = f'dollars as text, such as "0.50", from "0" to "{LARGEST // NANO}", nine decimals at most'
_MINUTE_WORDS: Final = f"a whole number from 1 to {MOST_A_MINUTE}"


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("no name")
    return value


def _tenant(value: str) -> str:
    if not value or (value != PLATFORM and _WILD & set(value)):
        raise ValueError("no tenant")
    return value


def _exact_model(value: str) -> str:
    if not value or _WILD & set(value):
        raise ValueError("no model")
    return value


def _model(value: str) -> str:
    provider, slash, model = value.partition("/")
    if not (slash and 0 < len(model) <= MOST_PATTERN and _PROVIDER.fullmatch(provider)):
        raise ValueError("no model")
    is_of_built_in = any(
        fnmatchcase(known, provider) for known in LLMProvider
    )  # so is `openai*`, close as it is to one
    if not is_of_built_in and close_name(provider):
        raise ValueError("no model")
    return value


def _provider(provider: LLMProvider) -> LLMProvider:
    if close_name(provider):
        raise ValueError("no provider")
    return provider


def _nusd(value: Any) -> int:
    """Return dollars as nano-dollars. Raises `ValueError` for a float."""
    # Floats are refused, because 0.1 as a float is not the amount that was written.
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not _USD.fullmatch(text):
        raise ValueError("no amount")
    nusd = int(Decimal(text) * NANO)
    if nusd > LARGEST:
        raise ValueError("too much")
    return nusd


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("twice")
    return values


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Name = Annotated[StrictStr, AfterValidator(_name)]
SigningKeys = Annotated[
    tuple[Name, ...], Field(min_length=1), BeforeValidator(_one_or_more), AfterValidator(_each_once)
]
Nusd = Annotated[int, BeforeValidator(_nusd)]
PerMinute = Annotated[StrictInt, Field(ge=1, le=MOST_A_MINUTE)]
Tenants = Annotated[tuple[Annotated[StrictStr, AfterValidator(_tenant)], ...], AfterValidator(_each_once)]
Patterns = Annotated[
    tuple[Annotated[StrictStr, Field(min_length=1, max_length=MOST_PATTERN)], ...],
    Field(min_length=1),
    AfterValidator(_each_once),
]
Models = Annotated[tuple[Annotated[StrictStr, AfterValidator(_model)], ...], AfterValidator(_each_once)]
Workflows = Annotated[tuple[EnvelopeWorkflow, ...], Field(min_length=1), AfterValidator(_each_once)]
Tools = Annotated[tuple[Annotated[StrictStr, Field(min_length=1)], ...], AfterValidator(_each_once)]


class Highest(BaseModel, frozen=True, extra="forbid"):
    """The ceilings of a principal's calls, in nano-dollars where the file has dollars.

    None means unlimited.
    """

    nusd_per_call: Nusd | None = Field(default=None, alias="usd_per_call", description=_USD_WORDS)
    nusd_per_trace: Nusd | None = Field(default=None, alias="usd_per_trace", description=_USD_WORDS)
    nusd_per_agent_day: Nusd | None = Field(default=None, alias="usd_per_agent_day", description=_USD_WORDS)
    calls_per_agent_day: Annotated[StrictInt, Field(ge=0, le=LARGEST)] | None = Field(
        default=None, description=f"a whole number from 0 (none may run) to {LARGEST}"
    )
    nusd_per_day: Nusd | None = Field(default=None, alias="usd_per_day", description=_USD_WORDS)
    output_tokens: Annotated[StrictInt, Field(ge=1, le=LARGEST)] | None = Field(
        default=None, description=f"a whole number from 1 to {LARGEST}"
    )
    priority: Annotated[StrictInt, Field(ge=-(2**31), le=2**31)] | None = Field(
        default=None, description=f"a whole number from {-(2**31)} to {2**31}"
    )
    attempt_timeout_s: Annotated[StrictFloat, Field(gt=0, le=3600)] | None = Field(
        default=None, description="seconds, more than 0 and at most 3600"
    )


class Principal(BaseModel, frozen=True, extra="forbid"):
    """The rights of one principal.

    Agents and models are shell patterns. Tenants are ids, or `*` for all.
    """

    key: SigningKeys | None = Field(default=None, description=f"{_NAME_WORDS}, or a list of such names")
    tenants: Annotated[Tenants, Field(min_length=1)] = Field(
        description=f'one or more different ids of tenants, or "{PLATFORM}" for all tenants'
    )
    agents: Patterns = Field(
        default=("*",),
        description='one or more different patterns of at most 256 characters, such as "cmt-*"',
    )
    workflows: Workflows = Field(
        default=tuple(EnvelopeWorkflow),
        description=f"one or more of {', '.join(EnvelopeWorkflow)}, each once",
    )
    models: Annotated[Models, Field(min_length=1)] = Field(
        description='one or more different patterns of at most 256 characters, such as "anthropic/claude-*". '
        f"Built-in providers: {', '.join(LLMProvider)}"
    )
    tools: Tools = Field(default=(), description="names of tools, each once")
    highest: Highest = Field(default=Highest(), description="a table")


class RateRow(BaseModel, frozen=True, extra="forbid"):
    """The rates of one model, shared by all its callers."""

    provider: Annotated[LLMProvider, AfterValidator(_provider)] = Field(
        description=f"the name of a provider, such as {', '.join(LLMProvider)}"
    )
    model: Annotated[StrictStr, AfterValidator(_exact_model)] = Field(
        description="the id of one model, no pattern"
    )
    requests_per_minute: PerMinute | None = Field(default=None, description=_MINUTE_WORDS)
    tokens_per_minute: PerMinute | None = Field(default=None, description=_MINUTE_WORDS)
    concurrent: PerMinute | None = Field(default=None, description=_MINUTE_WORDS)


class PolicyFile(BaseModel, frozen=True, extra="forbid"):
    """A parsed policy file. Without principals it restricts no sender."""

    principals: Annotated[dict[Name, Principal], Field(min_length=1)] | None = Field(
        default=None, description="one table or more, each [principals.NAME]"
    )
    rates: tuple[RateRow, ...] = Field(default=(), description="tables, each [[rates]]")


def read_policy(path: Path) -> PolicyFile:
    """Read and check a policy.

    Raises:
        PolicyError: For the first mistake, with its table and key.

    """
    try:
        tables = read_toml(path)
    except OSError as e:
        raise PolicyError(path, "", f"an unreadable file ({e.strerror})", "a TOML file") from e
    except NoTomlError as e:
        raise PolicyError(path, "", f"invalid TOML ({e})", "a TOML file in UTF-8") from e
    try:
        file = PolicyFile.model_validate(tables)
    except ValidationError as e:
        errors = e.errors(include_url=False)
        unknown = (error for error in errors if error["type"] == "extra_forbidden")
        error = next(unknown, errors[0])  # a word that is misspelled explains one that is missing
        raise PolicyError(path, _place(error["loc"]), _found(error), _allowed(error)) from e
    for where, found, allowed in _contradictions(file):
        raise PolicyError(path, where, found, allowed)
    return file


def _contradictions(file: PolicyFile) -> Iterator[tuple[str, str, str]]:
    """Yield values that are valid alone but conflict with others."""
    if file.principals is None and not file.rates:
        yield "", "neither principals nor rates", "one of them, or no policy at all"
    yield from _principals_in_conflict(file.principals or {})
    rows: set[tuple[str, str]] = set()
    for number, row in enumerate(file.rates):
        where = _place(("rates", number))
        if (row.provider, row.model) in rows:
            yield where, f"{row.provider}/{row.model} again", "one table per model"
        rows.add((row.provider, row.model))
        if row.requests_per_minute is row.tokens_per_minute is row.concurrent is None:
            yield where, "no rate", "at least one of requests_per_minute, tokens_per_minute, concurrent"


def _principals_in_conflict(principals: Mapping[str, Principal]) -> Iterator[tuple[str, str, str]]:
    owners: dict[str, str] = {}
    for name, principal in principals.items():
        # Counters are kept per tenant, so that a principal of every tenant would have one ceiling per tenant
        # name (decision 29).
        if principal.highest.nusd_per_day is not None and PLATFORM in principal.tenants:
            where = _place(("principals", name, "highest", "usd_per_day"))
            found = f"a ceiling per tenant together with tenants = [{PLATFORM!r}]"
            yield where, found, "tenants by id, because each tenant has its own ceiling"
        # This is an error, because a signature could not distinguish two principals with one key.
        for key in principal.key or (name,):
            owner = owners.setdefault(key, name)
            if owner != name:
                where = _place(("principals", name, "key"))
                found = f"{key!r}, which is the key of {owner!r}"
                yield where, found, "a separate key, because the key identifies the principal"


_WORDS: Final = {
    field.alias or name: field.description or ""
    for table in (PolicyFile, Principal, Highest, RateRow)
    for name, field in table.model_fields.items()
}


def _table_at(place: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the model of the table at `place`, or None for an unknown table."""
    match list(place):
        case []:
            return PolicyFile
        case ["principals", _]:
            return Principal
        case ["principals", _, "highest"]:
            return Highest
        case ["rates", int()]:
            return RateRow
        case _:
            return None


def _allowed(error: ErrorDetails) -> str:
    place = error["loc"]
    if place[-1:] == ("[key]",):
        return _NAME_WORDS
    if error["type"] == "extra_forbidden":
        return _keys(_table_at(place[:-1]))
    table = _table_at(place)
    if table is not None:
        return f"a table with {_keys(table)}"
    return next((_WORDS[key] for key in reversed(place) if key in _WORDS), "a documented value")


def _keys(table: type[BaseModel] | None) -> str:
    fields = (table or PolicyFile).model_fields
    return ", ".join(field.alias or name for name, field in fields.items())


def _found(error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return "nothing"
        case "extra_forbidden":
            return "an unknown key"
        case _:
            return f"{error['input']!r:.100}"


def _place(loc: Sequence[int | str]) -> str:
    """Return the place of a mistake in the file's terms. Tables of a list are counted from 1."""
    place = ""
    for step in loc:
        if step == "[key]":
            continue
        if isinstance(step, int):
            place += f"[{step + 1}]"
        else:
            place += ("." if place else "") + (step if re.fullmatch(r"[\w-]+", step) else f"{step!r:.100}")
    return place


@dataclass(frozen=True, slots=True)
class _Rights:
    """The rights of a principal, and the ceilings that are added to its calls."""

    may: Principal
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """The rights and ceilings of each principal.

    Without principals, every sender may do everything.

    Attributes:
        principals: The rights by name of the principal.
        rates: The rate limits of each model, shared by all its callers.
        source: The name of the file. Refusals contain it.

    Example:
        ```python
        policy = Policy.load(Path("policy.toml"))
        refusal = policy.problem("desk-a", envelope)  # None if the call is allowed
        ```

    """

    principals: Mapping[str, Principal] | None = None
    rates: Mapping[Deployment, RateLimits] = field(default_factory=dict)
    source: str = "the policy"
    _rights: Mapping[str, _Rights] = field(init=False)

    def __post_init__(self) -> None:
        """Computes the limits of each principal once."""
        rights = {
            name: _Rights(may, tuple(_limits(may.highest, name, self.source)))
            for name, may in (self.principals or {}).items()
        }
        object.__setattr__(self, "_rights", rights)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the policy at `path`.

        Raises:
            PolicyError: For the first mistake, with its table and key.

        """
        file = read_policy(path)
        rates = {
            Deployment(row.provider, row.model): RateLimits(
                row.requests_per_minute, row.tokens_per_minute, row.concurrent
            )
            for row in file.rates
        }
        return cls(file.principals, rates, path.name)

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The names of each principal's keys.

        It signs with the first, and all of them are valid.
        """
        return {name: may.key or (name,) for name, may in (self.principals or {}).items()}

    def problem(self, principal: str, envelope: LLMEnvelope, *, max_tokens: int = 0) -> FailureReason | None:
        """Return why `principal` may not run this envelope, or None.

        Args:
            principal: The sender.
            envelope: The call.
            max_tokens: The output cap of the attempt, if it may be higher than the envelope's own.

        """
        if envelope.tenant_id == PLATFORM:
            return _refused(f"tenant {PLATFORM!r} is the platform itself; allowed are tenants of other names")
        if self.principals is None:
            return None
        rights = self._rights.get(principal)
        if rights is None:
            return self._unknown(principal)
        problem = _reach_problem(rights.may, envelope) or _size_problem(rights.may, envelope, max_tokens)
        return self._not_allowed(principal, *problem) if problem else None

    def tenant_problem(self, principal: str, tenant_id: str) -> FailureReason | None:
        """Return why `principal` may not send for this tenant, or None."""
        if self.principals is None:
            return None
        rights = self._rights.get(principal)
        if rights is None:
            return self._unknown(principal)
        if not any(fnmatchcase(tenant_id, pattern) for pattern in rights.may.tenants):
            return self._not_allowed(principal, "tenants", f"tenant {tenant_id!r:.200}", rights.may.tenants)
        return None

    def _unknown(self, principal: str) -> FailureReason:
        return _refused(
            f"principal {principal!r:.200} is unknown; allowed are those with a table [principals.NAME] in {self.source}"
        )

    def _not_allowed(self, principal: str, key: str, what: str, allowed: Iterable[object]) -> FailureReason:
        """Return a refusal with the rule, its allowed values and its place in the file."""
        stands = ", ".join(map(str, allowed)) or "none"
        return _refused(
            f"principal {principal!r} may not use {what}; allowed: {stands} (principals.{principal}.{key} in {self.source})"
        )

    def limits(self, principal: str) -> tuple[Limit, ...]:
        """Return the ceilings that are added to each of a principal's calls.

        Raises:
            KeyError: If the principal is unknown. `problem` refuses it before.

        """
        return () if self.principals is None else self._rights[principal].limits


_Problem = tuple[str, str, Iterable[object]]
"""The key of the rule, the refused value, and the allowed values."""


def _reach_problem(may: Principal, envelope: LLMEnvelope) -> _Problem | None:
    """Return the first tenant, agent, workflow or model that the principal may not use, or None."""
    reaches = (
        ("tenant", envelope.tenant_id, may.tenants),
        ("agent", agent_of(envelope), may.agents),
        ("workflow", str(envelope.workflow), may.workflows),
        ("model", f"{envelope.provider}/{envelope.model}", may.models),
    )
    for what, asked, patterns in reaches:
        if not any(fnmatchcase(asked, pattern) for pattern in patterns):
            return f"{what}s", f"{what} {asked!r:.200}", patterns
    return None


def _size_problem(may: Principal, envelope: LLMEnvelope, max_tokens: int) -> _Problem | None:
    """Return the first tool or size that the principal may not use, or None."""
    for tool in envelope.tools_allowed:
        if tool not in may.tools:
            return "tools", f"tool {tool!r:.200}", may.tools
    highest = may.highest
    tokens = max(max_tokens, envelope.budget.max_output_tokens + envelope.budget.thinking_budget)
    time_limit = envelope.retry_policy.attempt_timeout_s
    sizes: tuple[tuple[str, float, float | None, str], ...] = (
        ("output_tokens", tokens, highest.output_tokens, f"{tokens} output tokens, thinking included"),
        ("priority", envelope.priority, highest.priority, f"priority {envelope.priority}"),
        ("attempt_timeout_s", time_limit, highest.attempt_timeout_s, f"{time_limit:g} s for an attempt"),
    )
    for key, asked, most, text in sizes:
        if most is not None and asked > most:
            return f"highest.{key}", text, (f"at most {most:g}",)
    return None


def _limits(highest: Highest, principal: str, source: str) -> Iterator[Limit]:
    """Yield the ceilings of each call, each with its rule."""

    def rule(key: str) -> str:
        return f"principals.{principal}.highest.{key} in {source}"

    per_call, per_trace, per_day = highest.nusd_per_call, highest.nusd_per_trace, highest.nusd_per_agent_day
    if per_call is not None:
        yield Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=per_call, rule=rule("usd_per_call"))
    if per_trace is not None:
        yield Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=per_trace, rule=rule("usd_per_trace"))
    if per_day is not None:
        yield Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=per_day, rule=rule("usd_per_agent_day"))
    if highest.nusd_per_day is not None:
        yield Limit(ScopeKind.PRINCIPAL, ANY, Window.DAY, nusd=highest.nusd_per_day, rule=rule("usd_per_day"))
    if highest.calls_per_agent_day is not None:
        calls = highest.calls_per_agent_day
        yield Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=calls, rule=rule("calls_per_agent_day"))


def _refused(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.NOT_ALLOWED, description=description)
