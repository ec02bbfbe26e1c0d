"""The estimate is a bound: no usage that a model could report within the caps costs more."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.estimate import Amount, bound, input_bound
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook
from agentic_trading.llm.capability import Capabilities, Capability
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage
from agentic_trading.llm.table import read_table
from tests.build import envelope

BOOK = PriceBook.load()
CAPABILITIES = Capabilities.load()
PRICES = read_table(PACKAGED_PRICES, ModelPrice).rows
TODAY = datetime(2026, 11, 21, tzinfo=UTC)


def request(system: str = "s", user: str = "u", **changes: Any) -> ModelRequest:
    fields = {"attempt": 1, "answer": 1, "transport": "prompted", "max_tokens": 100, **changes}
    return ModelRequest(envelope=envelope(), system=system, user=user, **fields)


def of(model: str, provider: LLMProvider = LLMProvider.ANTHROPIC) -> Capability:
    return CAPABILITIES.of(provider, model)


@st.composite
def reports(draw: st.DrawFn) -> tuple[Capability, ModelRequest, Usage]:
    """Draw a request, and a usage that its provider could report for it."""
    price = draw(st.sampled_from(PRICES))
    capability = CAPABILITIES.of(price.provider, price.model)
    asked = request(
        draw(st.text(max_size=200)) * draw(st.integers(1, 3000)),
        draw(st.text(max_size=50)),
        max_tokens=draw(st.integers(1, capability.max_output_tokens)),
    )
    left = input_bound(asked, capability)
    classes = []
    for _ in range(3):
        classes.append(draw(st.integers(0, left)))
        left -= classes[-1]
    words = {
        name: draw(st.sampled_from(["", *getattr(price, name)])) for name in ("inference_geo", "service_tier")
    }
    usage = Usage(
        input_tokens=left,
        cache_read_tokens=classes[0],
        cache_write_5m_tokens=classes[1],
        cache_write_1h_tokens=classes[2],
        output_tokens=draw(st.integers(0, asked.max_tokens)),
        speed=draw(st.sampled_from(["", "standard"])) if price.speed else "",
        **words,
    )
    return capability, asked, usage


@given(reports())
def test_no_usage_within_the_caps_costs_more_than_the_bound(
    report: tuple[Capability, ModelRequest, Usage],
) -> None:
    capability, asked, usage = report

    most = bound(asked, capability, BOOK, at=TODAY)

    assert BOOK.cost_nusd(capability.provider, capability.model, usage, at=TODAY) <= most.nusd
    assert usage.total_tokens <= most.tokens
    assert most.calls == 1


def test_the_bound_is_reached_by_the_worst_usage() -> None:
    asked, model = request("x" * 76, max_tokens=100), of("claude-sonnet-5-5")
    worst = Usage(cache_write_1h_tokens=77 + 1024, output_tokens=100, inference_geo="us")

    most = bound(asked, model, BOOK, at=TODAY)

    assert most == Amount(nusd=(1101 * 4000 + 100 * 10_000) * 11 // 10, tokens=1201)
    assert BOOK.cost_nusd(LLMProvider.ANTHROPIC, model.model, worst, at=TODAY) == most.nusd


def test_input_is_bounded_by_utf8_bytes_not_by_characters() -> None:
    model = of("claude-sonnet-5-5")

    assert input_bound(request("a", "b"), model) == 2 + 1024
    assert input_bound(request("é", "𝄞"), model) == 6 + 1024
    assert input_bound(request("\ud800", ""), model) == 3 + 1024


def test_a_model_with_longer_tokens_has_fewer_of_them() -> None:
    assert input_bound(request("abcd", "efghi"), of("rules-1", LLMProvider.RULES)) == 3 + 16


def test_a_schema_that_the_provider_enforces_counts_twice() -> None:
    schema = {"type": "object"}
    model = of("claude-sonnet-5-5")

    plain = input_bound(request(), model)
    native = input_bound(request(transport="native_schema", response_schema=schema), model)

    assert native - plain == 2 * len('{"type":"object"}')


def test_the_providers_own_count_takes_the_place_of_the_bytes() -> None:
    model = of("claude-sonnet-5-5")

    counted = bound(request("x" * 4000, max_tokens=10), model, BOOK, at=TODAY, input_tokens=1000)

    assert counted.tokens == 1000 + 1024 + 10


def test_a_model_without_a_price_has_no_bound() -> None:
    stranger = of("claude-sonnet-5-5").model_copy(update={"model": "claude-next"})

    with pytest.raises(UnknownModelError):
        bound(request(), stranger, BOOK, at=TODAY)


@pytest.mark.parametrize("amount", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_an_amount_is_never_a_credit(amount: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        Amount(*amount)
