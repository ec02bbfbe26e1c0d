"""Phases 5 and 6 of the parsers' test plan: through the real loop, on a scripted model."""

from decimal import Decimal

from structlog.testing import capture_logs

from agentic_trading.llm import FailureKind, LLMEnvelope, LLMInteraction
from agentic_trading.llm.errors import FailureReason
from tests.gateway import GOOD, MemoryGateway, asking, attempts, gateway

PROMPTED = "scripted-prompted-1"
NATIVE = "scripted-1"
BROKEN = "buy 1.5 now"
SEALED = '{"action":"buy","size":1.50,"end":"ok"}'


async def run(desk: MemoryGateway, envelope: LLMEnvelope) -> LLMInteraction:
    """Return the last attempt at an envelope."""
    return await desk.runner.run(envelope)


async def test_instructor_parser_end_to_end() -> None:
    last = await run(gateway([GOOD]), asking(model=PROMPTED).build())

    assert last.result.success
    assert last.result.parsed_output == {"action": "buy", "size": Decimal("1.50")}
    assert last.result.reading
    assert (last.result.reading.parser, last.result.reading.transport) == ("InstructorParser", "prompted")


async def test_structured_logprobs_parser_end_to_end() -> None:
    last = await run(gateway([GOOD]), asking(model=NATIVE).build())

    assert last.result.success
    assert last.result.parsed_output == {"action": "buy", "size": Decimal("1.50")}
    assert last.result.reading
    assert (last.result.reading.parser, last.result.reading.transport) == (
        "StructuredLogProbsParser",
        "native_schema",
    )


async def test_runner_turns_parser_exception_into_failure() -> None:
    desk = gateway([BROKEN])

    last = await run(desk, asking("execution", model=NATIVE).build())

    assert isinstance(last.result.failure, FailureReason)
    assert last.result.failure.category is FailureKind.PARSING_ERROR
    assert last.result.parsed_output == {}


async def test_the_caller_receives_domain_types_only() -> None:
    desk = gateway([BROKEN, BROKEN, BROKEN])
    envelope = asking("planning").build()

    await run(desk, envelope)

    for one in await attempts(desk, envelope):
        assert type(one) is LLMInteraction
        assert LLMInteraction.model_validate_json(one.model_dump_json()).result == one.result


async def test_a_session_handles_parsing_failures_gracefully() -> None:
    desk = gateway(lambda request: BROKEN if request.envelope.context["symbol"] == "B" else SEALED)

    results = [(await run(desk, asking("execution", symbol=symbol).build())).result for symbol in "ABC"]

    assert [result.success for result in results] == [True, False, True]


async def test_different_models_produce_valid_structured_output() -> None:
    desk = gateway([GOOD, GOOD])

    results = [(await run(desk, asking(model=model).build())).result for model in (PROMPTED, NATIVE)]

    assert [result.parsed_output["action"] for result in results] == ["buy", "buy"]
    assert len({result.reading.parser for result in results if result.reading}) == 2


async def test_parsing_failures_fail_their_calls() -> None:
    desk = gateway(lambda request: BROKEN if request.envelope.context["symbol"] == "B" else GOOD)

    results = [(await run(desk, asking("planning", symbol=symbol).build())).result for symbol in "ABC"]

    assert [result.success for result in results] == [True, False, True]
    assert [result.validation_passed for result in results] == [True, False, True]


async def test_a_session_logs_parser_failure_context() -> None:
    desk = gateway([BROKEN])

    with capture_logs() as logs:
        last = await run(desk, asking("execution", model=PROMPTED).build())

    (entry,) = [entry for entry in logs if entry["event"] == "answer_rejected"]
    assert (entry["parser_type"], entry["stage"]) == ("InstructorParser", "json_parse")
    assert last.result.failure
    assert last.result.failure.description == "InstructorParser failed at json_parse"
