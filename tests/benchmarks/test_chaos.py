"""The checks of the chaos run: what is sound passes, and each check finds what is planted for it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from benchmarks.chaos import envelope_of
from benchmarks.chaos_checks import Booked, Check, Evidence, Logs, Recorded, Sent, checks_of, print_checks
from benchmarks.chaos_provider import Billed, billed

SENT = (
    Sent("call-1", "e1", "t", "analysis"),
    Sent("call-2", "e2", "t", "analysis"),
    Sent("call-3", "e3", "t", "execution"),
)
RECORDED = (
    Recorded("i1", "e1", 1, "retry", "timeout", in_doubt=True, nusd=900),
    Recorded("i2", "e1", 2, "final", "", in_doubt=False, nusd=100),
    Recorded("i3", "e2", 1, "final", "", in_doubt=False, nusd=100),
    Recorded("i4", "e3", 1, "retry", "server_error", in_doubt=False, nusd=0),
    Recorded("i5", "e3", 2, "final", "", in_doubt=False, nusd=100),
)
INVOICE = (
    Billed("call-1", 1, "silent", 100, 1.0),
    Billed("call-1", 2, "answered", 100, 2.0),
    Billed("call-2", 1, "answered", 100, 3.0),
    Billed("call-3", 1, "refused", 0, 1.0),
    Billed("call-3", 2, "answered", 100, 2.0),
)
BOOKED = (
    Booked("call-1", 1, "in_doubt", 900),
    Booked("call-1", 2, "settled", 100),
    Booked("call-2", 1, "settled", 100),
    Booked("call-3", 1, "settled", 0),
    Booked("call-3", 2, "settled", 100),
)
SOUND = Evidence(
    SENT, Logs([*RECORDED]), INVOICE, BOOKED, spent=1200, replies={"e1": "i2"}, asked=frozenset({"e1"}),
    topic=frozenset({"i1", "i2", "i3", "i4", "i5"}), exits=(0, 0),
)  # fmt: skip


def broken(evidence: Evidence) -> list[Check]:
    return [check for check in checks_of(evidence) if check.broken]


def recorded(*changes: tuple[int, dict[str, object]], more: Sequence[Recorded] = ()) -> Evidence:
    """Return the sound evidence with other records in the logs."""
    records = [*RECORDED, *more]
    for place, fields in changes:
        records[place] = replace(records[place], **fields)  # type: ignore[arg-type]
    return replace(SOUND, logs=Logs(records), topic=frozenset(each.interaction_id for each in records))


def test_sound_evidence_passes_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_checks(checks_of(SOUND))
    said = capsys.readouterr().out
    assert "3 / 3 / 0 / 0 (0 dead letters)" in said
    assert "1 server_error, 1 timeout" in said
    assert "1,200 - 800 (1) = 400" in said


PLANTED: dict[str, tuple[Callable[[], Evidence], str, str]] = {
    "no end": (lambda: recorded((2, {"step": "retry"})), "exactly one end", "call-2 has no end"),
    "two ends": (lambda: recorded((0, {"step": "final"})), "exactly one end", "call-1 has 2 ends"),
    "an end and a letter": (lambda: replace(SOUND, letters={"e2": "crash_loop"}), "exactly one end", "call-2 has 2 ends"),
    "a letter without a reason": (
        lambda: replace(recorded((2, {"step": "retry"})), letters={"e2": ""}),
        "exactly one end",
        "a letter without a reason",
    ),
    "copies that differ": (
        lambda: recorded(more=[replace(RECORDED[2], in_doubt=True, nusd=900)]),
        "copies, which agree",
        "call-2 attempt 1: answered for 100, then final, and answered in doubt for 900",
    ),
    "goes on after its end": (
        lambda: recorded(more=[Recorded("i6", "e2", 2, "retry", "timeout", in_doubt=True, nusd=1)]),
        "after the end",
        "call-2 ended with 1 and has 2",
    ),
    "sent twice": (lambda: replace(SOUND, invoice=[*INVOICE, INVOICE[2]]), "sent twice", "call-2 attempt 1: 2 times"),
    "again without a reason": (
        lambda: recorded((0, {"failure": "", "in_doubt": False})),
        "called again, after",
        "call-1 was called again after attempt 1",
    ),
    "an order again": (
        lambda: replace(SOUND, invoice=[replace(each, outcome="silent") if each.call == "call-3" else each for each in INVOICE]),
        "executions called again",
        "call-3 attempt 1 was silent",
    ),
    "a bill without a record": (
        lambda: recorded((2, {"attempt": 2})),
        "billed requests without a record",
        "call-2 attempt 1 was billed 100",
    ),
    "settled at another price": (
        lambda: replace(SOUND, booked=[replace(BOOKED[1], nusd=99), *BOOKED[2:], BOOKED[0]], spent=1199),
        "= invoice",
        "call-1 attempt 2: settled at 99, billed 100",
    ),
    "in doubt below the bill": (
        lambda: replace(SOUND, booked=[replace(BOOKED[0], nusd=99), *BOOKED[1:]], spent=399),
        "= invoice",
        "call-1 attempt 1: in_doubt at 99",
    ),
    "a bill that the ledger does not know": (
        lambda: replace(SOUND, booked=BOOKED[:-1], spent=1100),
        "= invoice",
        "call-3 attempt 2: billed 100, and the ledger does not know it",
    ),
    "a counter that is not the sum": (lambda: replace(SOUND, spent=1201), "= invoice", "its counter is 1201"),
    "money held": (lambda: replace(SOUND, held=5), "held in the ledger", "5 nUSD are held"),
    "out of order": (
        lambda: replace(SOUND, invoice=[replace(INVOICE[2], at=0.5), *INVOICE[:2], *INVOICE[3:]]),
        "out of order",
        "call-2 was sent before call-1",
    ),
    "asked in vain": (lambda: replace(SOUND, replies={}), "answered with the end", "call-1 was asked, and got no answer"),
    "answered something else": (lambda: replace(SOUND, replies={"e1": "i1"}), "answered with the end", "answered i1"),
    "not on the topic": (
        lambda: replace(SOUND, topic=frozenset({"i1", "i2", "i3", "i4"})),
        "= on the topic",
        "i5 is in a log, not on the topic",
    ),
    "in no log": (lambda: replace(recorded(), topic=frozenset({"i1", "i2", "i3", "i4", "i5", "i9"})), "= on the topic", "i9 is on the topic"),
    "a worker that was killed at its end": (lambda: replace(SOUND, exits=(0, -9)), "in good order", "ended with -9"),
}  # fmt: skip


def test_restored_claims_excuse_extra_letters() -> None:
    unknown = Logs([*RECORDED[:2], *RECORDED[3:]], dispatched={("call-2", 1)})
    topic = SOUND.topic and SOUND.topic - {"i3"}
    beside = replace(SOUND, letters={"e1": "taken_elsewhere: sent by another run"})
    in_place = replace(
        SOUND, logs=unknown, topic=topic, letters={"e2": "taken_elsewhere: sent by another run"}
    )

    for evidence in (beside, in_place):
        assert broken(replace(evidence, was_set_back=True)) == []
        assert broken(evidence) != []
    not_dispatched = replace(in_place, logs=Logs(unknown.recorded), was_set_back=True)
    assert [each.promise for each in broken(not_dispatched)] == ["billed requests without a record"]
    assert broken(replace(beside, letters={"e1": "crash_loop"}, was_set_back=True)) != []


def test_unkept_claim_excuses_a_second_end() -> None:
    doubt = replace(
        RECORDED[2], interaction_id="i3", step="retry", failure="shutdown", in_doubt=True, nusd=900
    )
    evidence = recorded(more=[doubt, Recorded("i6", "e2", 2, "final", "", in_doubt=False, nusd=100)])
    twice = {"exactly one end", "copies, which agree", "after the end"}

    found = {promise for check in broken(evidence) for promise in twice if promise in check.promise}
    assert found == twice
    for excused in (replace(evidence, unkept=frozenset({"e2"})), replace(evidence, was_set_back=True)):
        left = broken(excused)
        assert [check for check in left if any(promise in check.promise for promise in twice)] == []


@pytest.mark.parametrize("what", PLANTED)
def test_each_check_finds_planted_fault(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted, promise, place = PLANTED[what]

    found = [check for check in broken(planted()) if promise in check.promise]

    assert len(found) == 1
    assert any(place in line for line in found[0].broken)
    assert not print_checks(found)
    assert place in capsys.readouterr().out


def test_every_check_is_tested() -> None:
    promises = {promise for _, promise, _ in PLANTED.values()}

    assert [
        check.promise for check in checks_of(SOUND) if not any(each in check.promise for each in promises)
    ] == []


def test_log_lines_are_parsed() -> None:
    logs, envelope = Logs(), envelope_of(5)
    late = {"kind": "attempt.answered_late", "body": {"reservation_id": "default:call-5:1", "attempt": 1}}
    result = {
        "attempt_number": 2,
        "next_step": "final",
        "failure": {"category": "timeout"},
        "in_doubt": True,
        "cost_nusd": 7,
    }
    line = {"interaction_id": "i", "envelope": json.loads(envelope.wire), "result": result}
    kinds = ("attempt.unsent", "attempt.dispatched")
    for record in (
        late,
        *({**late, "kind": kind} for kind in kinds),
        {"kind": "run.ended", "body": {}},
        line,
    ):
        logs.add(json.dumps(record).encode())

    assert logs.recorded == [
        Recorded("i", envelope.envelope_id, 2, "final", "timeout", in_doubt=True, nusd=7)
    ]
    assert logs.late == logs.unsent == logs.dispatched == {("call-5", 1)}
    assert (logs.finished, logs.interactions, logs.records) == ({envelope.envelope_id}, {"i"}, 5)


def test_provider_bills_match_answers_and_refusals() -> None:
    lines = [billed(f"call-{number}", 1, 0.0) for number in range(5_000)]

    shares = {
        outcome: sum(line.outcome == outcome for line, _ in lines) / 5_000
        for outcome in ("refused", "silent")
    }
    assert shares == {"refused": pytest.approx(0.02, abs=0.006), "silent": pytest.approx(0.01, abs=0.004)}
    for line, tokens in lines:
        price = 1000 * tokens["prompt_tokens"] + 2000 * tokens["completion_tokens"]
        assert line.nusd == (0 if line.outcome == "refused" else price)
