"""The estimate is a bound: no usage that a model could report within the caps costs more."""

import json
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

import orjson
import pytest
from anthropic import transform_schema
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import canonical_bytes
from agentic_trading.clock import SimClock
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.prices import (
    PACKAGED_PRICES,
    Amount,
    ModelPrice,
    PriceBook,
    Rates,
    bound,
    input_bound,
)
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.limits import nusd_from_usd
from agentic_trading.llm.models import Capabilities, Capability, DatedTable, read_table
from agentic_trading.llm.provider import ANSWER_TOOL, ModelRequest
from agentic_trading.llm.providers.hosted import TOOL_DESCRIPTION
from agentic_trading.llm.result import Usage
from agentic_trading.structured.strict_schema import strict_schema
from tests.build import envelope
from tests.governance.gates import admitted, gate

BOOK = PriceBook.load()
CAPABILITIES = Capabilities.load()
PRICES = read_table(PACKAGED_PRICES, ModelPrice).rows
TODAY = datetime(2026, 11, 21, tzinfo=UTC)
CLASSES = tuple(Rates.model_fields)
PLAIN_SPEEDS = {"standard", "default"}


def request(system: str = "s", user: str = "u", **changes: Any) -> ModelRequest:
    fields = {"attempt": 1, "answer": 1, "transport": "prompted", "max_tokens": 100, **changes}
    return ModelRequest(envelope=envelope(), system=system, user=user, **fields)


def of(model: str, provider: LLMProvider = LLMProvider.ANTHROPIC) -> Capability:
    return CAPABILITIES.of(provider, model)


def days_of(price: ModelPrice) -> list[datetime]:
    """Return a moment of every price that the book has for a model, and the one before the first."""
    days = [row.valid_from for row in PRICES if row.model == price.model]
    moments = [datetime.combine(day, time(12), UTC) for day in days]
    return [moments[0] - timedelta(days=400), *moments]


@st.composite
def requests(draw: st.DrawFn, capability: Capability) -> ModelRequest:
    """Draw a request of any size, told in words or with a schema that is enforced one way or the other."""
    changes: dict[str, Any] = {"max_tokens": draw(st.integers(1, capability.max_output_tokens))}
    transport = draw(st.sampled_from(["prompted", "native_schema", "strict_tool"]))
    if transport != "prompted":
        names = draw(st.lists(st.text(max_size=8), max_size=20, unique=True))
        changes |= {"transport": transport, "response_schema": {"required": names}}
    text = st.text(max_size=200)
    return request(draw(text) * draw(st.integers(1, 3000)), draw(text), **changes)


@st.composite
def usages(draw: st.DrawFn, price: ModelPrice, inward: int, outward: int) -> Usage:
    """Draw what a provider could report: any part of the input in any class, any word that has a price but a speed."""
    used = draw(st.integers(0, inward) | st.just(inward))
    cuts = sorted(draw(st.lists(st.integers(0, used), min_size=3, max_size=3)))
    classes = [high - low for low, high in pairwise([0, *cuts, used])]
    words = {
        name: draw(st.sampled_from(["", *getattr(price, name)])) for name in ("inference_geo", "service_tier")
    }
    return Usage(
        input_tokens=classes[0],
        cache_read_tokens=classes[1],
        cache_write_5m_tokens=classes[2],
        cache_write_1h_tokens=classes[3],
        output_tokens=draw(st.integers(0, outward) | st.just(outward)),
        thinking_tokens=draw(st.integers(0, outward)),
        speed=draw(st.sampled_from(["", *PLAIN_SPEEDS & (price.speed.keys() or PLAIN_SPEEDS)])),
        **words,
    )  # fmt: skip


@pytest.mark.parametrize("price", PRICES, ids=lambda price: f"{price.model}-{price.valid_from}")
@given(st.data())
def test_bound_covers_any_usage_within_caps(price: ModelPrice, data: st.DataObject) -> None:
    capability = of(price.model, price.provider)
    asked = data.draw(requests(capability))
    at = data.draw(st.sampled_from(days_of(price)))
    counted = data.draw(st.none() | st.integers(0, 1_000_000))
    inward = input_bound(asked, capability) if counted is None else counted + capability.overhead_tokens
    priced = BOOK.price(price.provider, price.model, at=at)
    usage = data.draw(usages(priced, inward, asked.max_tokens))

    most = bound(asked, capability, BOOK, at=at, input_tokens=counted)

    assert BOOK.cost_nusd(capability.provider, capability.model, usage, at=at) <= most.nusd
    assert usage.total_tokens <= most.tokens
    assert most.calls == 1


rates = st.fixed_dictionaries(dict.fromkeys(CLASSES, st.integers(0, 10**6)))
words = st.dictionaries(
    st.sampled_from(["standard", "default", "us", "batch"]),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
)


@st.composite
def any_prices(draw: st.DrawFn) -> ModelPrice:
    """Draw a price such as a book of one's own may have: longer requests may be cheaper, plain words dearer."""
    steps = sorted(draw(st.sets(st.integers(1, 5000), max_size=3)))
    tiers = [draw(rates) | {"over_input_tokens": over} for over in steps]
    tables = {name: draw(words) for name in ("inference_geo", "service_tier", "speed")}
    whose = {"provider": "scripted", "model": "scripted-1", "valid_from": "2026-01-01"}
    return ModelPrice.model_validate({
        **draw(rates),
        **tables,
        **whose,
        "tiers": tiers,
        "source": "drawn",
        "checked_on": "2026-01-01",
    })


@given(any_prices(), st.integers(0, 6000), st.integers(1, 5000), st.data())
def test_bound_holds_for_every_possible_price(
    price: ModelPrice, counted: int, cap: int, data: st.DataObject
) -> None:
    book = PriceBook(DatedTable(Path("drawn.json"), (price,), {"name": "drawn"}, "0" * 64))
    capability = of("scripted-1", LLMProvider.SCRIPTED)
    usage = data.draw(usages(price, counted + capability.overhead_tokens, cap))

    most = bound(request(max_tokens=cap), capability, book, at=TODAY, input_tokens=counted)

    assert book.cost_nusd(capability.provider, capability.model, usage, at=TODAY) <= most.nusd


# What a gateway reserved that takes the plain input rate for every token, and what was then charged (USD).
UNDER_ESTIMATES = [
    ("claude-haiku-5-5", 200_000, 4_000, Usage(input_tokens=200_000, output_tokens=4_000), "0.022", "0.110"),
    ("claude-opus-5-5", 50_000, 1_000, Usage(cache_write_1h_tokens=50_000, output_tokens=1_000), "0.22", "0.42"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "counted", "cap", "usage", "theirs", "charged"),
    UNDER_ESTIMATES,
    ids=["a long request of claude-haiku-5-5", "an hour's cache write of claude-opus-5-5"],
)
def test_bound_covers_usage_above_plain_rate(
    model: str, counted: int, cap: int, usage: Usage, theirs: str, charged: str
) -> None:
    cost = BOOK.cost_nusd(LLMProvider.ANTHROPIC, model, usage, at=TODAY)

    most = bound(request(max_tokens=cap), of(model), BOOK, at=TODAY, input_tokens=counted)

    assert cost == nusd_from_usd(Decimal(charged))
    assert nusd_from_usd(Decimal(theirs)) < cost <= most.nusd


async def test_unrequested_fast_mode_is_an_overrun() -> None:
    ledger = MemoryLedger()
    at = gate(ledger, clock=SimClock(TODAY))
    asked = request(max_tokens=10_000)
    asked = replace(asked, envelope=envelope(provider="anthropic", model="claude-opus-5-5"))
    admission = await admitted(at, asked)
    await at.lifecycle.dispatch(admission)

    charge = await at.lifecycle.settle(admission, Usage(output_tokens=10_000, speed="fast"))

    assert charge.cost_nusd == nusd_from_usd(Decimal("0.40"))
    assert charge.overrun_nusd == charge.cost_nusd - admission.amount.nusd > 0
    assert ledger.statistics().overruns == 1


def test_worst_usage_reaches_the_bound() -> None:
    asked, model = request("x" * 76, max_tokens=100), of("claude-sonnet-5-5")
    worst = Usage(cache_write_1h_tokens=77 + 1024, output_tokens=100, inference_geo="us")

    most = bound(asked, model, BOOK, at=TODAY)

    assert most == Amount(nusd=(1101 * 4000 + 100 * 10_000) * 11 // 10, tokens=1201)
    assert BOOK.cost_nusd(LLMProvider.ANTHROPIC, model.model, worst, at=TODAY) == most.nusd


def test_input_is_bounded_by_utf8_bytes() -> None:
    model = of("claude-sonnet-5-5")

    assert input_bound(request("a", "b"), model) == 2 + 1024
    assert input_bound(request("é", "𝄞"), model) == 6 + 1024
    assert input_bound(request("\ud800", ""), model) == 3 + 1024


def test_input_bound_covers_unicode_normalization() -> None:
    model = of("claude-sonnet-5-5")

    assert input_bound(request("\ufdfa", ""), model) == 33 + 1024
    assert input_bound(request("e\u0301", ""), model) == 3 + 1024


@given(st.text())
def test_input_bound_covers_any_text(text: str) -> None:
    model = of("claude-sonnet-5-5")

    most = input_bound(request(text, ""), model) - model.overhead_tokens

    assert most >= len(text.encode("utf-8", "surrogatepass"))
    assert most >= len(normalize("NFKC", text).encode("utf-8", "surrogatepass"))


def passed_on(fields: dict[str, Any], **spelled: Any) -> int:
    """Return the bytes that count for a client's own request, as `json.dumps` spells it."""
    model = of("claude-haiku-5-5")
    asked = request("", json.dumps(fields, **spelled), transport="verbatim")
    return input_bound(asked, model) - model.overhead_tokens


def test_input_bound_covers_escaped_characters() -> None:
    fields = {"messages": [{"role": "user", "content": "\ufdfa" * 1000}]}

    assert passed_on(fields) == passed_on(fields, ensure_ascii=False) > 33_000


def test_written_escape_of_a_backslash_is_no_escape() -> None:
    body = json.dumps({"messages": "\\ufdfa"})

    assert passed_on({"messages": "\\ufdfa"}) == len(body)


def test_escaped_pair_is_one_character() -> None:
    # U+1D160 has 4 bytes, and 12 when it is normalized.
    fields = {"messages": "\U0001d160" * 10}

    assert passed_on(fields) == len(json.dumps({"messages": ""})) + 120


JSON_TEXTS = st.text(
    st.characters() | st.characters(categories=["Cs"]) | st.sampled_from('\\"u\ufdfa\x07e\u0301')
)
TREES = st.recursive(
    JSON_TEXTS | st.integers(), lambda tree: st.lists(tree) | st.dictionaries(JSON_TEXTS, tree)
)
BODIES = st.dictionaries(st.sampled_from(["messages", "tools", "text", "functions"]) | JSON_TEXTS, TREES)


@given(BODIES)
def test_escaped_body_is_bounded_like_the_unescaped_one(fields: dict[str, Any]) -> None:
    assert passed_on(fields) >= passed_on(fields, ensure_ascii=False)
    assert passed_on(fields) >= passed_on(json.loads(json.dumps(fields)), ensure_ascii=False)


def test_name_with_an_escape_counts_twice_like_the_plain_one() -> None:
    model = of("claude-haiku-5-5")
    plain, escaped = '{"tools":["a tool"]}', '{"t\\u006fols":["a tool"]}'
    bounds = [input_bound(request("", body, transport="verbatim"), model) for body in (plain, escaped)]

    assert bounds[1] - bounds[0] == len(escaped) - len(plain)


def test_tools_of_a_client_count_twice_with_their_frames() -> None:
    tools = [{"name": f"t{number}", "description": "d" * 20, "input_schema": {}} for number in range(100)]
    fields: dict[str, Any] = {"messages": []}
    most = len(json.dumps(fields | {"tools": tools})) + len(json.dumps(tools)) + 100 * 128

    assert passed_on(fields | {"tools": tools}) == most
    assert passed_on(fields | {"tools": None}) == len(json.dumps(fields | {"tools": None})) + 4


@pytest.mark.parametrize("name", ["response_format", "text", "output_config", "output_format", "functions"])
def test_schema_of_a_client_counts_twice(name: str) -> None:
    schema = {"schema": {"description": "\ufdfa" * 100}}
    shown = json.dumps(schema, ensure_ascii=False)

    assert passed_on({name: schema}) - passed_on({name: ""}) >= 2 * len(normalize("NFKC", shown).encode()) - 8


def test_longer_tokens_lower_the_input_bound() -> None:
    assert input_bound(request("abcd", "efghi"), of("rules-1", LLMProvider.RULES)) == 3 + 16


def test_enforced_schema_counts_twice() -> None:
    schema = {"type": "object"}
    model = of("claude-sonnet-5-5")

    plain = input_bound(request(), model)
    native = input_bound(request(transport="native_schema", response_schema=schema), model)

    assert native - plain == 2 * len('{"type":"object"}')


names = st.sampled_from(["a", "b", "name", "é"])
leaves = st.sampled_from([
    {"type": "string"},
    {"type": "string", "maxLength": 5, "pattern": "^a", "format": "date"},
    {"type": "number", "minimum": 0, "exclusiveMaximum": 9, "multipleOf": 0.5},
    {"type": "integer", "description": "a count"},
    {"enum": ["up", "down", None]},
    {"const": 1},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3, "uniqueItems": True},
])
objects = st.recursive(
    leaves, lambda inner: st.builds(lambda of: {"type": "object", "properties": of}, st.dictionaries(names, inner))
).map(lambda inner: {"type": "object", "properties": {"a": inner}})  # fmt: skip


@given(objects)
def test_sdk_schema_fits_counted_length(schema: dict[str, Any]) -> None:
    strict = strict_schema(canonical_bytes(schema), sentinel=False)

    assert strict is not None
    assert len(orjson.dumps(transform_schema(orjson.loads(strict.json)))) <= len(strict.json)


def test_answer_tool_counts_like_response_format() -> None:
    schema = {"type": "object"}
    model = of("claude-sonnet-5-5")

    forms = [request(transport=name, response_schema=schema) for name in ("native_schema", "strict_tool")]

    assert len({input_bound(form, model) for form in forms}) == 1
    assert len(f"{ANSWER_TOOL}{TOOL_DESCRIPTION}") < model.overhead_tokens


def test_provider_count_replaces_byte_count() -> None:
    model = of("claude-sonnet-5-5")

    counted = bound(request("x" * 4000, max_tokens=10), model, BOOK, at=TODAY, input_tokens=1000)

    assert counted.tokens == 1000 + 1024 + 10


def test_unpriced_model_has_no_bound() -> None:
    stranger = of("claude-sonnet-5-5").model_copy(update={"model": "claude-next"})

    with pytest.raises(UnknownModelError):
        bound(request(), stranger, BOOK, at=TODAY)


@pytest.mark.parametrize("amount", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_negative_amount_is_rejected(amount: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="has a negative value"):
        Amount(*amount)
