"""Make a share of answers fail on purpose, the same ones in every run."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Self, assert_never

from agentic_trading.errors import TradingError
from agentic_trading.ids import fraction
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


class FaultKind(StrEnum):
    """What can be made to go wrong."""

    MALFORMED = "malformed"
    TIMEOUT = "timeout"
    REFUSAL = "refusal"
    CUT = "cut"


class FaultsError(TradingError, ValueError):
    """A description of faults cannot be understood; `part` is the wrong piece."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = reason
        allowed = "malformed, timeout, refusal, truncated (or cut)"
        super().__init__(f"{part!r}: {reason}; allowed are {allowed}, each with 0% to 100% and 100% in all")


_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%")


@dataclass(frozen=True, slots=True)
class Faults:
    """The share of attempts that fails in each way; `shares` are fractions of 1 and come to 1 at most."""

    shares: tuple[tuple[FaultKind, float], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `malformed=5%,timeout=2%,refusal=1%,truncated=1%`; an empty text is no faults, `cut` is `truncated`.

        Raises `FaultsError` for an unknown or repeated kind, and for shares above 100 %, alone or in all.
        """
        shares: dict[FaultKind, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, share = part.partition("=")
            kind = _kind(part, name.strip())
            if kind in shares:
                raise FaultsError(part, f"{kind} stands twice")
            shares[kind] = _share(part, share.strip())
        if sum(shares.values()) > 1 + 1e-9:
            raise FaultsError(text, "the shares come to more than 100%")
        return cls(tuple((kind, shares[kind]) for kind in FaultKind if kind in shares))

    def pick(self, chance: float) -> FaultKind | None:
        """Return what goes wrong for a number drawn evenly from [0, 1), or None."""
        for kind, share in self.shares:
            if chance < share:
                return kind
            chance -= share
        return None


class FaultyProvider:
    """Answer as `inner` does, but for the share of attempts that is to fail.

    What fails depends on `seed`, envelope id and attempt alone, so that it repeats itself in any order of calls. A
    changed answer says so: its `provider_response_id` is `injected:<kind>`; an error's message starts with
    `injected`.
    """

    def __init__(self, inner: Provider, faults: Faults, seed: str) -> None:
        self._inner = inner
        self._faults = faults
        self._seed = seed

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return or raise what `inner` does, or the fault that this attempt is to have."""
        kind = self._faults.pick(self._chance(request, "kind"))
        match kind:
            case None:
                return await self._inner.complete(request)
            case FaultKind.TIMEOUT:
                raise ProviderError(FailureKind.TIMEOUT, "injected timeout", sent=True)
            case FaultKind.MALFORMED | FaultKind.REFUSAL | FaultKind.CUT:
                response = await self._inner.complete(request)
                return self._spoil(response, kind, request)
            case _:
                assert_never(kind)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return what `inner` counts."""
        return await self._inner.count_tokens(request)

    async def aclose(self) -> None:
        """Close `inner`."""
        await self._inner.aclose()

    def _chance(self, request: ModelRequest, what: str) -> float:
        return fraction(self._seed, request.envelope.envelope_id, request.attempt, what)

    def _spoil(self, response: ModelResponse, kind: FaultKind, request: ModelRequest) -> ModelResponse:
        marked = replace(response, structured=None, provider_response_id=f"injected:{kind}")
        where = self._chance(request, "where")
        if kind is FaultKind.REFUSAL:
            return replace(marked, text="", stop_reason="refusal")
        if kind is FaultKind.MALFORMED:
            return replace(marked, text=malform(response.text, way=self._chance(request, "way"), where=where))
        reason = "end_turn" if self._chance(request, "way") < 0.5 else "max_tokens"
        return replace(marked, text=response.text[: int(where * len(response.text))], stop_reason=reason)


def _kind(part: str, name: str) -> FaultKind:
    try:
        return FaultKind("cut" if name == "truncated" else name)
    except ValueError:
        raise FaultsError(part, f"{name!r} is not a kind of fault") from None


def _share(part: str, text: str) -> float:
    match = _SHARE.fullmatch(text)
    if match is None or float(match[1]) > 100:
        raise FaultsError(part, f"{text!r} is not a share like 5%")
    return float(match[1]) / 100


def malform(text: str, *, way: float, where: float) -> str:
    """Return `text` broken in one of four ways; `way` and `where` are numbers in [0, 1) that choose.

    A comma is missing, a key has no quotes, a value has another type, or prose follows the object; the last one
    where the text has no place for the others.
    """
    tokens = list(_TOKEN.finditer(text))
    spoil = _WAYS[int(way * len(_WAYS))]
    return spoil(text, tokens, where) or f"{text}\n\nI hope this helps."


JsonTokens = list[re.Match[str]]


def _without_comma(text: str, tokens: JsonTokens, where: float) -> str:
    commas = [token for token in tokens if token[0] == ","]
    return _replaced(text, commas, where, lambda _: " ")


def _with_bare_key(text: str, tokens: JsonTokens, where: float) -> str:
    keys = [key for key, colon in pairwise(tokens) if colon[0] == ":" and key[0].startswith('"')]
    return _replaced(text, keys, where, lambda key: key.strip('"'))


def _with_other_type(text: str, tokens: JsonTokens, where: float) -> str:
    values = [value for colon, value in pairwise(tokens) if colon[0] == ":"]
    scalars = [value for value in values if value[0] not in {"{", "["}]
    return _replaced(text, scalars, where, lambda value: "0" if value.startswith('"') else '"n/a"')


def _with_prose(_text: str, _tokens: JsonTokens, _where: float) -> str:
    return ""


def _replaced(text: str, places: JsonTokens, where: float, change: Callable[[str], str]) -> str:
    if not places:
        return ""
    place = places[int(where * len(places))]
    return text[: place.start()] + change(place[0]) + text[place.end() :]


_WAYS = (_without_comma, _with_bare_key, _with_other_type, _with_prose)
