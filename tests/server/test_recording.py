"""The recording of a replay: the nearest record of a miss, volatile texts, and the use at the end."""

import json
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider, ResponseFormat
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.verbatim import VerbatimRequest
from agentic_trading.platform.errors import OptionError
from agentic_trading.server import recording
from agentic_trading.server.calls import AS_IT_COMES
from agentic_trading.server.recording import ServedRecording, VolatileTexts
from tests.build import interaction, result
from tests.cli.conftest import Command
from tests.server.conftest import started

CLOCK = r"\d\d:\d\d:\d\d"


def asked(
    *texts: str, agent: str = "trader-1", key: str = "desk", step: str = "", model: str = "gpt", **fields: Any
) -> LLMEnvelope:
    """Return the envelope of a chat with these messages; `fields` are others of its body."""
    messages = [{"role": "user", "content": text} for text in texts]
    body = json.dumps({"messages": messages, **fields})
    builder = EnvelopeBuilder().with_context(VerbatimRequest("chat_completions", body).context)
    builder.with_instructions("Answer.").with_response_format(ResponseFormat.VERBATIM)
    builder.with_output_policy(AS_IT_COMES).with_safety(require_json=False)
    builder.with_provider(LLMProvider.OPENAI, model).with_agent(agent, f"http:{key}").with_subject(
        "", step=step
    )
    return builder.build()


def recorded(envelope: LLMEnvelope, text: str = "recorded", attempt: int = 1) -> LLMInteraction:
    """Return a recorded attempt at an envelope."""
    kept = result(
        envelope_id=envelope.envelope_id, raw_output=text, attempt_number=attempt, stop_reason="stop"
    )
    return interaction(envelope=envelope, result=kept)


def served(
    *interactions: LLMInteraction, volatile: tuple[str, ...] = (), secrets: tuple[str, ...] = ()
) -> ServedRecording:
    """Return a recording of these attempts."""
    found = ServedRecording(VolatileTexts(volatile), Redaction(*secrets))
    for one in interactions:
        found.add(one)
    return found


async def text_of(answers: ServedRecording, envelope: LLMEnvelope, attempt: int = 1) -> str:
    """Return the text of the answer, or an empty one after a miss."""
    found = await answers.find(envelope, attempt)
    return "" if found is None else found.raw_output


async def test_miss_names_the_unused_record_with_the_fewest_different_paths() -> None:
    rows = [
        recorded(asked("a", "b")),
        recorded(asked("Judge NVDA at 10:00:00 today.", "b", temperature=0.5)),
        recorded(asked("a", "b", "c", agent="other")),
    ]
    answers = served(*rows)

    message = await answers.explain_miss(asked("Judge NVDA at 10:00:07 today.", "b", temperature=0.5), 1)

    assert message.endswith(
        f"The nearest unused record is {rows[1].interaction_id}, number 2 of the recording. It differs in 1 place: "
        'messages[0].content: recorded … NVDA at 10:00:00 today.", asked … NVDA at 10:00:07 today."'
    )


async def test_served_records_and_those_of_other_agents_are_not_the_nearest() -> None:
    first = asked("a")
    answers = served(recorded(first), recorded(asked("a", agent="other")), recorded(asked("x", "y", "z")))
    await answers.find(first, 1)

    message = await answers.explain_miss(asked("b"), 1)

    assert "number 3 of the recording. It differs in 5 places: " in message
    assert 'messages[1].content: recorded "y", asked nothing; messages[1].role' in message
    assert message.count("recorded ") - message.count("not recorded ") == 5, message


async def test_other_model_limit_and_name_of_the_trace_are_differences() -> None:
    answers = served(recorded(asked("a", step="monday", model="gpt")))

    message = await answers.explain_miss(asked("a", step="tuesday", model="mini"), 1)

    assert (
        "differs in 2 places: the name of its trace: recorded 'monday', asked 'tuesday'; model: " in message
    )


async def test_three_differences_are_shown_with_64_characters_each_and_without_secrets() -> None:
    secret = "sk-proj-a1b2c3d4e5f6"  # noqa: S105 - of no provider
    answers = served(recorded(asked(*("old " * 99 for _ in range(5)))), volatile=(), secrets=(secret,))

    message = await answers.explain_miss(asked(f"{secret} " * 9, *("new " * 99 for _ in range(4))), 1)

    shown = message.partition("5 places: ")[2]
    assert secret[:8] not in message
    assert [one.partition(":")[0] for one in shown.split("; ")] == [
        f"messages[{n}].content" for n in range(3)
    ]
    assert 'asked "*** *** ***' in shown
    assert (
        max(
            len(side) for one in shown.split("; ") for side in one.partition("recorded ")[2].split(", asked ")
        )
        == 64
    )


@pytest.mark.timeout(120)
async def test_nearest_record_of_ten_thousand_takes_a_bounded_time() -> None:
    talk = [f"{number} {'text ' * 20}" for number in range(100)]
    each = [asked(*talk[:number], f"end {number}") for number in range(100)]
    answers = served(*(recorded(each[number % 100]) for number in range(10_000)))

    began = time.process_time()
    message = await answers.explain_miss(asked(*talk[:50], "end"), 1)
    took = time.process_time() - began

    assert "number 51 of the recording. It differs in 1 place" in message
    assert took < 5


async def test_comparison_stops_at_the_limit_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = served(*(recorded(asked(f"{number}", "x" if number else "y")) for number in range(9)))
    monkeypatch.setattr(recording, "MOST_COMPARED", 12)

    message = await answers.explain_miss(asked("8", "x"), 1)

    assert "number 1 of the recording. It differs in 2 places" in message


async def test_request_matches_without_its_volatile_texts_once_for_each_record() -> None:
    live = [asked(f"Data of 10:00:0{number}\nJudge.") for number in range(2)]
    answers = served(*(recorded(one, f"answer {place}") for place, one in enumerate(live)), volatile=(CLOCK,))
    again = [asked(f"Data of 11:11:1{number}\nJudge.") for number in range(3)]

    texts = [await text_of(answers, again[place]) for place in (0, 1, 0, 2)]

    assert texts == ["answer 0", "answer 1", "answer 0", ""]
    assert [answers.is_volatile_match(one.envelope_id) for one in again] == [True, True, False]
    assert (answers.use.volatile, answers.use.misses, answers.use.unused) == (2, 1, 0)


async def test_exact_record_is_preferred_and_its_match_is_not_volatile() -> None:
    live = [asked(f"Data of 10:00:0{number}") for number in range(2)]
    answers = served(*(recorded(one, f"answer {place}") for place, one in enumerate(live)), volatile=(CLOCK,))

    assert await text_of(answers, again := asked("Data of 10:00:01")) == "answer 1"
    assert not answers.is_volatile_match(again.envelope_id)
    assert await text_of(answers, asked("Data of 10:00:01")) == "answer 0"


async def test_further_attempts_belong_to_the_matched_record() -> None:
    live = [asked("at 10:00:00"), asked("at 10:00:01")]
    rows = [recorded(live[0], "a1"), recorded(live[1], "b1"), recorded(live[1], "b2", attempt=2)]
    answers = served(*rows, volatile=(CLOCK,))
    first, second = asked("at 12:00:00"), asked("at 12:00:01")

    assert [await text_of(answers, first), await text_of(answers, first, 2)] == ["a1", ""]
    assert [await text_of(answers, second), await text_of(answers, second, 2)] == ["b1", "b2"]


@pytest.mark.parametrize(
    "other", [{"agent": "other"}, {"step": "run-2"}, {"model": "mini"}, {"temperature": 1}]
)
async def test_only_the_text_of_the_body_may_differ(other: dict[str, Any]) -> None:
    answers = served(recorded(asked("at 10:00:00")), volatile=(CLOCK, r"mini|gpt|1"))

    assert await text_of(answers, asked("at 12:00:00", **other)) == ""
    assert await text_of(answers, asked("at 12:00:00")) == "recorded"


async def test_match_stays_within_a_line_and_leaves_the_record_unchanged() -> None:
    live = recorded(asked("now: 10\nJudge NVDA."))
    answers = served(live, volatile=("now: .*",))

    assert await text_of(answers, asked("now: 12\nJudge AMD.")) == ""
    found = await answers.find(asked("now: 12\nJudge NVDA."), 1)
    assert found == live.result


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "invalid"), ("", "empty"), ("a{99999999999}", "invalid"), (".*", "every text"), (r"\w+", "every text"),
        (r"[\s\S]", "every text"), (r"^.+$|\d", "every text"),
    ],
)  # fmt: skip
def test_wrong_pattern_is_named(pattern: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"--volatile is .*{why}"):
        VolatileTexts([pattern])


async def test_volatile_text_ends_with_its_line_in_json_within_a_text_too() -> None:
    answers = served(recorded(asked(json.dumps({"t": "at 1\nJudge NVDA."}))), volatile=(r"at .*",))

    assert await text_of(answers, asked(json.dumps({"t": "at 2\nJudge AMD."}))) == ""
    assert await text_of(answers, asked(json.dumps({"t": "at 2\nJudge NVDA."}))) == "recorded"


async def test_keys_of_one_agent_do_not_exchange_their_answers() -> None:
    def two() -> ServedRecording:
        rows = [recorded(asked("x", key=name), f"{name}{n}") for n in range(2) for name in ("a", "b")]
        return served(*rows)

    answers = two()
    assert [await text_of(answers, asked("x", key=name)) for name in "bbbaaa"] == [
        "b0",
        "b1",
        "",
        "a0",
        "a1",
        "",
    ]
    missed = await answers.explain_miss(asked("x", key="b"), 1)
    assert "its records are all served" in missed
    assert answers.use.unused == 0
    assert len(answers.misses) == 2

    answers = two()
    assert await text_of(answers, asked("x", key="c")) == ""
    assert "agent 'trader-1 (http:a)'" in await answers.explain_miss(asked("x", key="c"), 1)


async def test_volatile_texts_do_not_exchange_the_answers_of_keys() -> None:
    rows = [recorded(asked("at 09:00:00", key=name), name) for name in ("a", "b")]
    answers = served(*rows, volatile=(CLOCK,))

    assert [await text_of(answers, asked("at 10:00:00", key=name)) for name in "ba"] == ["b", "a"]


async def test_key_of_another_name_gets_the_answers_of_a_single_one() -> None:
    answers = served(recorded(asked("x", key="a"), "first"), recorded(asked("x", key="a"), "second"))

    assert [await text_of(answers, asked("x", key="b")) for _ in range(3)] == ["first", "second", ""]


async def test_keys_that_share_the_count_of_an_agent_find_records_with_gaps() -> None:
    def numbered(key: str, number: int) -> LLMEnvelope:
        return asked("x", key=key).model_copy(update={"occurrence": number})

    rows = [
        recorded(numbered("a", 0), "a0"),
        recorded(numbered("b", 1), "b1"),
        recorded(numbered("b", 2), "b2"),
    ]
    answers = served(*rows)
    order = [("b", 0), ("a", 1), ("b", 2), ("b", 3)]

    assert [await text_of(answers, numbered(*one)) for one in order] == ["b1", "a0", "b2", ""]


def test_calls_that_no_client_can_ask_for_are_not_unused() -> None:
    assert served(interaction()).use.unused == 0


SLOW = "(a+)+$"
TRAP = "a" * 64 + "b"


async def test_pattern_that_is_too_slow_for_a_request_makes_it_a_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = ServedRecording(VolatileTexts([SLOW], within_s=0.1), Redaction())
    answers.add(recorded(asked("short")))

    assert await text_of(answers, trap := asked(TRAP)) == ""
    assert "Its volatile texts were not searched: --volatile takes more than" in await answers.explain_miss(
        trap, 1
    )
    assert await text_of(answers, asked("shortaaa")) == "recorded"


def test_pattern_that_is_too_slow_for_a_record_is_refused() -> None:
    answers, row = ServedRecording(VolatileTexts([SLOW], within_s=0.1), Redaction()), recorded(asked(TRAP))

    with pytest.raises(OptionError, match=f"--volatile is too slow.*{row.interaction_id}"):
        answers.add(row)


def test_long_line_is_not_searched() -> None:
    texts = VolatileTexts([r"\d+x"])
    value = json.dumps("7" * 1_000_000)

    assert texts.left([("body.a", value)]) != texts.left([("body.a", json.dumps("7x"))])
    assert texts.left([("body.a", json.dumps("7x"))]) == texts.left([("body.a", json.dumps("8x"))])


async def test_use_lists_the_first_misses_and_unused_records() -> None:
    rows = [recorded(asked(f"{number}")) for number in range(12)]
    answers = served(*rows)
    for number in range(11):
        miss = asked(f"other {number}")
        await answers.find(miss, 1)
        await answers.explain_miss(miss, 1)

    lines = answers.use.lines

    assert lines[0] == "replay: 11 attempts without a record, 12 records unused"
    assert all(line.startswith("miss: no recorded answer to rk1:") for line in lines[1:11])
    assert lines[11] == "miss: 1 more"
    assert list(lines[12:]) == [*(f"unused: {one.interaction_id}" for one in rows[:10]), "unused: 2 more"]


def answer(place: Path, url: str, text: str, **fields: Any) -> tuple[int, str, dict[str, Any]]:
    """Ask, and return status, header `x-agentic-matched`, and body. A stream is {}."""
    body = json.dumps({"model": "gpt", "input": text, **fields}).encode()
    named = {"authorization": f"Bearer {(place / 'secret.txt').read_text()}"}
    try:
        with urlopen(Request(f"{url}/v1/responses", body, named), timeout=30) as reply:  # noqa: S310 - a loopback address
            said = {} if "stream" in fields else json.loads(reply.read())
            return reply.status, reply.headers["x-agentic-matched"] or "", said
    except HTTPError as e:
        return e.code, "", json.loads(e.read())


@pytest.mark.timeout(120)
def test_replies_and_the_end_show_volatile_matches(place: Path) -> None:
    with started(place, "--store", "log") as (url, process):
        live = [answer(place, url, f"Data of {clock}") for clock in ("10:00:00", "10:00:01", "10:00:02")]
        process.ends()
    words = ("--provider", "recorded", "--from", "log", "--volatile", CLOCK)
    with started(place, *words) as (url, process):
        exact = answer(place, url, "Data of 10:00:01")
        matched = answer(place, url, "Data of 12:00:00")
        streamed = answer(place, url, "Data of 13:00:00", stream=True)
        status, _, error = answer(place, url, "News of 14:00:00")
        rest = process.ends()

    assert (exact, matched) == (live[1], (200, "volatile", live[0][2]))
    assert streamed == (200, "volatile", {})
    assert status == 422
    assert "its records are all" not in error["error"]["message"]
    assert (
        "replay: 1 attempts without a record, 0 records unused, 2 calls matched without volatile texts"
        in rest
    )


@pytest.mark.timeout(120)
def test_miss_report_reaches_the_client_and_the_end(place: Path) -> None:
    with started(place, "--store", "log") as (url, process):
        answer(place, url, "Data of 10:00:00")
        process.ends()
    with started(place, "--provider", "recorded", "--from", "log") as (url, process):
        status, _, error = answer(place, url, "Data of 10:00:07")
        rest = process.ends()

    nearest = 'differs in 1 place: input: recorded "Data of 10:00:00", asked "Data of 10:00:07"'
    assert status == 422
    assert nearest in error["error"]["message"]
    lines = rest.splitlines()
    assert nearest in next(line for line in lines if line.startswith("miss: "))
    assert [line.split(":")[0] for line in lines[-3:]] == ["replay", "miss", "unused"]


def test_patterns_need_a_recording_and_are_checked_at_the_start(place: Path, command: Command) -> None:
    (place / "log").mkdir()
    alone = command("serve", "--volatile", "a")
    wrong = command("serve", "--provider", "recorded", "--from", "log", "--volatile", "(")

    assert "--volatile is given without --from" in alone.err
    assert "--volatile is '(', an invalid pattern" in wrong.err
    assert (alone.code, wrong.code) == (2, 2)


@pytest.mark.timeout(120)
def test_replay_has_the_answers_of_both_runs_of_a_restarted_server(place: Path) -> None:
    for calls in (1, 3):
        with started(place, "--store", "log") as (url, process):
            assert [answer(place, url, "Judge.")[0] for _ in range(calls)] == [200] * calls
            process.ends()
    with started(place, "--provider", "recorded", "--from", "log") as (url, process):
        again = [answer(place, url, "Judge.")[0] for _ in range(5)]
        rest = process.ends()

    assert again == [200, 200, 200, 200, 422]
    assert "replay: 1 attempts without a record, 0 records unused" in rest


async def test_only_the_records_of_the_named_key_are_served() -> None:
    live = [asked("Judge.", key=key) for key in ("a", "b")]
    answers = ServedRecording(VolatileTexts(()), Redaction(), key="a")
    for one in live:
        answers.add(recorded(one, f"answer of {one.agent_type}"))

    own, other, renamed = (asked("Judge.", key=key) for key in ("a", "b", "c"))
    found = [await answers.find(one, 1) for one in (other, renamed, own)]

    assert [one and one.raw_output for one in found] == [None, None, "answer of http:a"]
    for one, name in ((other, "b"), (renamed, "c")):
        message = await answers.explain_miss(one, 1)
        assert message.endswith(f"The API key '{name}' has no record here. Keys with a record: a")
    assert "API key" not in await answers.explain_miss(own, 1)
    assert answers.use.unused == 0


async def test_a_match_without_volatile_texts_names_its_record() -> None:
    live = asked("at 10:00:00")
    answers = served(recorded(live), volatile=(CLOCK,))
    again = asked("at 11:00:00")

    assert await answers.find(again, 1) is not None
    assert answers.use.matched == {again.envelope_id: live.request_hash}
