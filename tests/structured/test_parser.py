"""A parser reads an answer with all that it asked with: the schema to the last digit, the cap, the data."""

import pytest

from agentic_trading.llm.envelope import EvidenceItem
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Stage, Usage
from agentic_trading.structured import InstructorParser, OutputParser, StructuredLogProbsParser
from tests.build import NOW, response
from tests.structured.asking import ORDER, REASKED, SEALED, STRICT, capability, request

PARSERS: list[OutputParser] = [InstructorParser(), StructuredLogProbsParser()]


@pytest.mark.parametrize("qty", ["10.00000000000000001", "10.0000000000000000000000001", "0.0"])
def test_a_number_a_last_digit_beyond_a_bound_is_refused(qty: str) -> None:
    for policy, end in ((STRICT, ""), (SEALED, ', "end": "ok"')):
        asked_with = request(output_policy=policy, expected_output_schema=ORDER)

        outcome = PARSERS[0].read(response(f'{{"side": "BUY", "qty": {qty}{end}}}'), asked_with)

        assert outcome.trace.verdict is Stage.SCHEMA_VALIDATION


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_cut_answer_is_known_by_the_cap_and_a_copy_by_the_data(parser: OutputParser) -> None:
    shown = EvidenceItem(
        evidence_id="E", source="wire", content='{"side": "BUY", "qty": 1}', retrieved_at=NOW
    )
    asked_with = request(
        capability(native_schema=False),
        output_policy=REASKED,
        expected_output_schema=ORDER,
        retrieved_evidence=[shown],
    )
    copied = response('They say {"side": "BUY", "qty": 1}, and I do not.')
    own = response('They say much, and I {"side": "SELL", "qty": 1}.')
    full = ModelResponse(own.text, "end_turn", Usage(output_tokens=asked_with.max_tokens), model="any")

    verdicts = [parser.read(answer, asked_with).trace.verdict for answer in (copied, own, full)]

    assert verdicts == [Stage.AMBIGUOUS, Stage.DONE, Stage.TRUNCATED]
