"""Requests that are passed on: what they may hold, and the fields that are added to them."""

from typing import Any

import pytest

from agentic_trading.llm import EnvelopeValidationError, EnvelopeWorkflow, ResponseFormat, SafetyConstraints
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS, check_envelope
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.verbatim import APIS, ASKED, VerbatimRequest, members_text, verbatim_problems
from tests.build import envelope

BODY = '{"messages": [{"role":"user","content":"é"}],"temperature":0.70}'


def of_client(**changes: Any) -> LLMEnvelope:
    """Return an envelope whose context is a client's own request."""
    context = {"api": "chat_completions", "body": BODY}
    return envelope(**{"context": context, "response_format": ResponseFormat.VERBATIM, **changes})


def test_envelope_with_a_clients_request_is_accepted_and_keeps_its_text() -> None:
    made = of_client()

    check_envelope(made)

    assert LLMEnvelope.from_wire(made.wire).context["body"] == BODY


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"safety_constraints": SafetyConstraints(require_json=True)}, "require_json"),
        ({"tools_allowed": ["news"]}, "tools_allowed"),
        ({"budget": LLMBudget(thinking_budget=10)}, "a thinking_budget"),
        (
            {
                "workflow": EnvelopeWorkflow.EXECUTION,
                "output_policy": PRESETS[EnvelopeWorkflow.EXECUTION].output,
                "safety_constraints": SafetyConstraints(require_deterministic=True),
            },
            "workflow execution",
        ),
    ],
)
def test_verbatim_contradictions_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(EnvelopeValidationError) as e:
        check_envelope(of_client(**changes))

    assert e.value.problems == (f"response_format is 'verbatim', which allows no {what}",)


def test_passed_on_request_has_no_evidence() -> None:
    builder = EnvelopeBuilder().with_instructions("x").with_context(dict(of_client().context))
    builder.with_response_format(ResponseFormat.VERBATIM).add_evidence("news", "up")

    with pytest.raises(EnvelopeValidationError, match="allows no evidence"):
        builder.with_provider(LLMProvider.OPENAI, "m").build()


def test_cap_below_the_number_of_answers_is_refused() -> None:
    context = {"api": "chat_completions", "body": '{"messages":[],"n":8}'}

    with pytest.raises(EnvelopeValidationError, match="max_output_tokens is 7 for 8 answers"):
        check_envelope(of_client(context=context, budget=LLMBudget(max_output_tokens=7)))


@pytest.mark.parametrize(
    ("context", "problem"),
    [
        ({"api": "chat_completions", "body": "{}", "more": 1}, "context has more. Allowed: api, betas, body, version"),
        ({"api": "chat_completions", "body": {}}, "context: body must be text"),
        ({"api": "embeddings", "body": "{}"}, f"context.api is 'embeddings'. Allowed: {', '.join(APIS)}"),
        ({"body": "{}"}, f"context.api is None. Allowed: {', '.join(APIS)}"),
        ({"api": "responses"}, "context.body is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ({"api": "responses", "body": "[" * 100_000}, "context.body is not JSON: maximum recursion depth exceeded"),
        ({"api": "responses", "body": "[1]"}, "context.body is not a JSON object"),
        ({"api": "responses", "body": '{"temperature":NaN}'}, "context.body is not JSON: NaN is no JSON"),
        ({"api": "messages", "body": '{"system":"a","system":"b"}'}, "context.body has system twice"),
        ({"api": "chat_completions", "body": '{"n":9}'}, "context.body has n = 9. Allowed: 1 to 8"),
        ({"api": "chat_completions", "body": '{"n":true}'}, "context.body has n = True. Allowed: 1 to 8"),
    ],
)  # fmt: skip
def test_context_that_is_no_request_is_named(context: dict[str, Any], problem: str) -> None:
    (found,) = verbatim_problems(context)

    assert found.startswith(problem)


@pytest.mark.parametrize(
    "name", ["model", "stream", "max_tokens", "service_tier", "store", "web_search_options"]
)
@pytest.mark.parametrize("api", APIS)
def test_body_with_a_field_that_is_not_asked_is_refused(api: str, name: str) -> None:
    (found,) = verbatim_problems({"api": api, "body": f'{{"{name}":1}}'})

    assert found.startswith(f"context.body has '{name}'. Allowed: {min(ASKED[api])}")  # type: ignore[index]


def test_fields_are_added_before_the_text_of_the_client() -> None:
    asked = VerbatimRequest("chat_completions", f"\n {BODY} ")

    assert (
        asked.with_fields({"model": "m", "max_tokens": 5})
        == f'{{"model":"m","max_tokens":5,{BODY[1:]}'.encode()
    )
    assert VerbatimRequest("messages", "{ }").with_fields({"model": "é"}) == '{"model":"é"}'.encode()


def test_request_is_its_context() -> None:
    plain, full = VerbatimRequest("responses", "{}"), VerbatimRequest("messages", "{}", "2023-06-01", "a,b")

    assert (plain.context, plain.choices) == ({"api": "responses", "body": "{}"}, 1)
    assert VerbatimRequest.of(full.context) == full
    assert VerbatimRequest("chat_completions", '{"n":3}').choices == 3


def test_members_keep_their_order_and_their_spelling() -> None:
    text = '{ "b" : 1.50 , "c":[1 , 2],"a":{"x":1e400}}'

    assert members_text(text, {"a", "b"}) == '{"b":1.50,"a":{"x":1e400}}'
