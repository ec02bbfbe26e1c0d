"""Make a share of the answers fail on purpose, the same answers in every run."""

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
    """A kind of fault to inject."""

    MALFORMED = "malformed"
    TIMEOUT = "timeout"
    REFUSAL = "refusal"
    CUT = "cut"


class FaultsError(TradingError, ValueError):
    """A description of faults is invalid. `part` is the wrong part."""

    def __init__(self, part: str, reason: str) -> None:
        self.part = part
        self.reason = reason
        allowed = "malformed, timeout, refusal, truncated (or cut)"
        super().__init__(f"{part!r}: {reason}. Allowed: {allowed}, each with 0% to 100%, at most 100% in all")


_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%")


@dataclass(frozen=True, slots=True)
class Faults:
    """The share of attempts that fails, by kind.

    Shares are fractions, and their sum is at most 1.
    """

    shares: tuple[tuple[FaultKind, float], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a text such as `malformed=5%,timeout=2%,refusal=1%,truncated=1%`.

        An empty text has no faults. `cut` is the same as `truncated`.

        Raises:
            FaultsError: If a kind is unknown or repeated, or a share or their sum is above 100 %.

        """
        shares: dict[FaultKind, float] = {}
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, share = part.partition("=")
            kind = _kind(part, name.strip())
            if kind in shares:
                raise FaultsError(part, f"{kind} is given twice")
            shares[kind] = _share(part, share.strip())
        if sum(shares.values()) > 1 + 1e-9:
            raise FaultsError(text, "the sum of the shares is more than 100%")
        return cls(tuple((kind, shares[kind]) for kind in FaultKind if kind in shares))

    def pick(self, chance: float) -> FaultKind | None:
        """Return the fault for a number drawn evenly from [0, 1), or None."""
        for kind, share in self.shares:
            if chance < share:
                return kind
            chance -= share
        return None


class FaultyProvider:
    """Answer as `inner` does, except for the share of attempts that must fail.

    The fault depends only on `seed`, envelope id and attempt, so that it is the same in any order of calls. A
    changed answer has the `provider_response_id` `injected:<kind>`, and an error's message starts with
    `injected`.
    """

    def __init__(self, inner: Provider, faults: Faults, seed: str) -> None:
        self._inner = inner
        self._faults = faults
        self._seed = seed

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer of `inner`, or the fault of this attempt."""
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
        """Return the count of `inner`."""
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
    """Return `text` broken in one of four ways.

    A comma is missing, a key has no quotes, a value has another type, or prose follows the object. The last
    way is used if the text has no place for the others. `way` and `where`, numbers in [0, 1), select the way
    and the place.
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
