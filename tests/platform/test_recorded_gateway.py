"""The answers of a record that several processes of a replayed program share."""

from pathlib import Path

from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.platform.recorded_gateway import SharedRecording
from tests.build import interaction, result


def question(text: str = "Judge.") -> LLMEnvelope:
    builder = EnvelopeBuilder().with_instructions(text).with_agent("analyst")
    return builder.with_provider(LLMProvider.SCRIPTED, "scripted-1").build()


def recorded(envelope: LLMEnvelope, text: str, attempt: int = 1) -> LLMInteraction:
    kept = result(envelope_id=envelope.envelope_id, raw_output=text, attempt_number=attempt)
    return interaction(envelope=envelope, result=kept)


def shared(claims: Path, *attempts: LLMInteraction) -> SharedRecording:
    found = SharedRecording(claims)
    for one in attempts:
        found.add(one)
    return found


async def text_of(answers: SharedRecording, envelope: LLMEnvelope, attempt: int = 1) -> str | None:
    found = await answers.find(envelope, attempt)
    return None if found is None else found.raw_output


async def test_each_record_answers_one_call_of_all_processes(tmp_path: Path) -> None:
    record = [recorded(question(), text) for text in ("first", "second")]
    one, other = (shared(tmp_path, *record) for _ in range(2))

    got = [await text_of(answers, question()) for answers in (one, other, one, other)]

    assert got == ["first", "second", None, None]
    assert (len(one.unused), len(other.unused)) == (1, 1)
    assert (len(one.misses), len(other.misses)) == (1, 1)


async def test_all_attempts_of_a_call_get_the_results_of_one_record(tmp_path: Path) -> None:
    first, second = question(), question()
    record = [
        recorded(each, f"{name} {n}", n) for name, each in (("a", first), ("b", second)) for n in (1, 2)
    ]
    one, other = (shared(tmp_path, *record) for _ in range(2))
    asked, also_asked = question(), question()

    got = [
        await text_of(answers, envelope, n)
        for n in (1, 2)
        for answers, envelope in ((one, asked), (other, also_asked))
    ]

    assert got == ["a 1", "b 1", "a 2", "b 2"]


async def test_the_recorded_envelope_itself_needs_no_claim(tmp_path: Path) -> None:
    envelope = question()
    one, other = (shared(tmp_path, recorded(envelope, "kept")) for _ in range(2))

    assert [await text_of(answers, envelope) for answers in (one, other, one)] == ["kept"] * 3
