"""The safety sweep counts what it says, and judges by it."""

import json

import pytest

from agentic_trading.structured.outcome import ParserException
from benchmarks.ours_reading import WAYS, RefusedError
from benchmarks.peers.order import EXPECTED, ORDER, SCHEMAS
from benchmarks.peers.reader import same
from benchmarks.peers.slips import GUESSES, SLIPS, TICKET, meant
from benchmarks.safety import DRAFTS, Reading, Row, damaged, judged, kept, stop_reasons_hold, validator


def row(
    *losses: Reading, is_judged: bool = False, cuts: tuple[Reading, ...] = (), slips: tuple[Reading, ...] = ()
) -> Row:
    """Return a row that has been measured, equal under both schemas."""
    by_schema = {"typical": list(cuts), "full": list(cuts)}
    lost = {"typical": list(losses), "full": list(losses)}
    return Row(
        "a reader", "nobody", "read", is_judged=is_judged, cuts=by_schema, losses=lost, slips=list(slips)
    )


def test_damage_covers_every_position() -> None:
    texts = damaged(every=1)

    assert len(set(texts.cuts)) == len(ORDER)
    assert all(ORDER.startswith(cut) and cut != ORDER for cut in texts.cuts)
    assert {len(text) for text in texts.losses} == {len(ORDER) - 1}
    assert len(texts.losses) == len(ORDER)


def test_drafts_are_valid_and_cut_everywhere() -> None:
    texts = damaged(every=1).thoughts

    assert all(validator(schema).is_valid(json.loads(draft)) for schema, draft in DRAFTS.items())
    assert {len(text) for text in texts} >= set(range(len(ORDER)))
    assert not any(text.endswith(ORDER) for text in texts)


@pytest.mark.parametrize("way", ["planning", "analysis", "read_json"])
@pytest.mark.parametrize("schema", DRAFTS)
def test_draft_in_cut_text_is_rejected(way: str, schema: str) -> None:
    read = WAYS[way](schema)

    for text in damaged(every=16).thoughts:
        with pytest.raises((ParserException, RefusedError)):
            read(text)


def test_expected_objects_fit_the_schemas() -> None:
    assert validator("typical").is_valid(EXPECTED)
    assert validator("full").is_valid(EXPECTED)
    assert validator("ticket").is_valid(TICKET)
    assert len(SCHEMAS["typical"]["required"]) == 3
    assert len(SCHEMAS["full"]["required"]) == len(EXPECTED) == 13


def test_slips_are_not_json_except_controls() -> None:
    readable = {"none", "repeated key, equal value"}

    for kind, texts in SLIPS.items():
        for text in texts:
            assert validator("ticket").is_valid(meant(text))
            assert _is_json(text) is (kind in readable), text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("told", "reading"),
    [
        (json.dumps(TICKET), "right"),
        (json.dumps({**TICKET, "qty": 2.5}), "wrong"),
        (json.dumps({**TICKET, "qty": 25}), "refused"),
        (json.dumps({**TICKET, "stop": float("nan")}), "refused"),
        ("{", "refused"),
        (None, "refused"),
    ],
)
def test_changed_value_within_schema_is_wrong(told: str | None, reading: Reading) -> None:
    assert judged(told, TICKET, "ticket") == reading


def test_same_distinguishes_booleans_from_numbers() -> None:
    assert same({"a": [1, 0.5]}, {"a": [1.0, 0.5]})
    assert not same({"a": True}, {"a": 1})
    assert not same([1], [1, 2])
    assert not same({"a": 1}, {"b": 1})


def test_introduced_errors_exclude_strict_json_errors() -> None:
    floor = row("wrong", "refused", "refused", "right")
    ours = row("wrong", "wrong", "right", "right")

    assert ours.beyond(floor, "full") == 1
    assert ours.mended(floor, "full") == 1
    assert floor.beyond(floor, "full") == 0


@pytest.mark.parametrize(
    ("ours", "holds"),
    [
        (row("wrong", "right", is_judged=True, cuts=("refused",), slips=("right",)), True),
        (row("wrong", "wrong", is_judged=True, cuts=("refused",), slips=("right",)), False),
        (row("wrong", "right", is_judged=True, cuts=("wrong",), slips=("right",)), False),
        (row("wrong", "right", is_judged=True, cuts=("refused",), slips=("refused",)), False),
        (row("wrong", "right", is_judged=True, cuts=("refused",), slips=("wrong",)), False),
        (row("wrong", "wrong", cuts=("wrong",), slips=("wrong",)), True),
    ],
)
def test_wrong_value_or_unmended_slip_breaks_promise(ours: Row, *, holds: bool) -> None:
    floor = row("wrong", "refused", cuts=("refused",), slips=("refused",))

    assert kept([floor, ours]) is holds


def test_unmeasured_own_way_breaks_promise() -> None:
    ours = row(is_judged=True)
    ours.unavailable = "it broke"

    assert not kept([row(), ours])


@pytest.mark.parametrize("way", ["planning", "analysis", "read_json"])
def test_ambiguous_text_is_rejected(way: str) -> None:
    read = WAYS[way]("ticket")

    for texts in GUESSES.values():
        for text in texts:
            with pytest.raises((ParserException, RefusedError)):
                read(text)


@pytest.mark.parametrize("way", ["planning", "analysis", "read_json"])
@pytest.mark.parametrize("kind", SLIPS)
def test_unambiguous_slip_is_mended(kind: str, way: str) -> None:
    read = WAYS[way]("ticket")

    for text in SLIPS[kind]:
        assert same(read(text), meant(text)), text


def test_incomplete_stop_reason_rejects_every_order() -> None:
    assert stop_reasons_hold()
