"""The benchmark of HTTP to a provider measures what it says, and judges by it."""

from collections.abc import Awaitable, Callable

import pytest

from benchmarks import http_ours
from benchmarks.http_session import MOST, Row, judged
from benchmarks.http_stub import serving
from benchmarks.peers.rounds import Round

WAYS = [
    http_ours.anthropic_session,
    http_ours.anthropic_adapter,
    http_ours.openai_session,
    http_ours.openai_adapter,
]


def row(ours: float, sdk: float, wrong: int = 0) -> Row:
    return Row("openai", 16, ([Round(ours, ours, wrong)], [Round(ours, ours, 0)], [Round(sdk, sdk, 0)]))


@pytest.mark.parametrize("way", WAYS)
async def test_own_http_ways_answer_correctly(
    way: Callable[[int, int], Awaitable[Round]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as address:
        monkeypatch.setenv("HTTP_STUB", address)
        assert (await way(4, 8)).wrong == 0


@pytest.mark.parametrize(
    ("measured", "holds"),
    [(row(MOST, 1), True), (row(MOST + 0.01, 1), False), (row(0.1, 1, wrong=1), False)],
)
def test_costly_or_wrong_session_fails(measured: Row, *, holds: bool) -> None:
    assert judged([row(0.1, 1), measured]) is holds
