"""A provider is a name: five are built in, and any other well-formed one is read, kept and compared like them."""

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm import (
    EnvelopeBuilder,
    EnvelopeValidationError,
    LLMEnvelope,
    LLMInteraction,
    LLMProvider,
)
from agentic_trading.llm.errors import FailureKind, FailureReason
from tests.build import envelope, interaction, result

names = st.from_regex(r"[a-z][a-z0-9._-]{0,63}", fullmatch=True)


@given(names)
def test_custom_provider_name_round_trips(name: str) -> None:
    provider = LLMProvider(name)

    assert provider == name == str(provider) == f"{provider}"
    assert {provider: 1}[LLMProvider(name)] == 1
    assert pickle.loads(pickle.dumps(provider)) == provider  # noqa: S301 - our own bytes
    assert copy.deepcopy(provider) == provider
    asked = envelope(provider=provider)
    assert LLMEnvelope.from_wire(asked.wire).provider == name
    answered = interaction(envelope=asked, result=result(provider=provider))
    read = LLMInteraction.from_wire(answered.wire)
    assert (read.envelope.provider, read.result.provider, read.wire) == (name, name, answered.wire)


def test_built_in_names_stay_enum_members() -> None:
    assert list(LLMProvider) == ["anthropic", "openai", "local", "rules", "scripted"]
    assert LLMProvider("openai") is LLMProvider.OPENAI
    assert LLMProvider("house") not in list(LLMProvider)


@pytest.mark.parametrize("name", ["", "House", "7b", "a b", "a" * 65, "-a", "ä", "a/b", None, 3])
def test_invalid_provider_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid LLMProvider"):
        LLMProvider(name)


@pytest.mark.parametrize(
    ("name", "meant"), [("antropic", "anthropic"), ("opena", "openai"), ("locl", "local")]
)
def test_near_miss_provider_name_is_refused(name: str, meant: str) -> None:
    builder = EnvelopeBuilder().with_instructions("Answer.").with_provider(LLMProvider(name), "m")

    with pytest.raises(EnvelopeValidationError, match=f"provider {name} is close .* did you mean {meant}"):
        builder.build()


@pytest.mark.parametrize("name", ["openai-eu", "local-a", "house", "vllm.a", "rules_2"])
def test_other_provider_names_are_accepted(name: str) -> None:
    built = EnvelopeBuilder().with_instructions("Answer.").with_provider(LLMProvider(name), "m").build()

    assert built.provider == name
    assert json.loads(built.wire)["provider"] == name


def test_newer_failure_kind_is_kept() -> None:
    newer = FailureReason(category=FailureKind("quota_moved"), description="new")
    written = interaction(failure=newer, success=False).wire

    read = LLMInteraction.from_wire(written)

    assert (read.failure, read.wire) == (newer, written)
    assert newer.category not in list(FailureKind)
