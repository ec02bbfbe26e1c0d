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
def test_a_name_of_ones_own_is_kept_by_every_copy_and_every_spelling(name: str) -> None:
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


def test_the_built_in_names_stay_the_members_of_the_set() -> None:
    assert list(LLMProvider) == ["anthropic", "openai", "local", "rules", "scripted"]
    assert LLMProvider("openai") is LLMProvider.OPENAI
    assert LLMProvider("house") not in list(LLMProvider)


@pytest.mark.parametrize("name", ["", "House", "7b", "a b", "a" * 65, "-a", "ä", "a/b", None, 3])
def test_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid LLMProvider"):
        LLMProvider(name)


@pytest.mark.parametrize(
    ("name", "meant"), [("antropic", "anthropic"), ("opena", "openai"), ("locl", "local")]
)
def test_a_name_close_to_a_built_in_one_is_refused_when_an_envelope_is_built(name: str, meant: str) -> None:
    builder = EnvelopeBuilder().with_instructions("Answer.").with_provider(LLMProvider(name), "m")

    with pytest.raises(EnvelopeValidationError, match=f"provider {name} is close .* did you mean {meant}"):
        builder.build()


@pytest.mark.parametrize("name", ["openai-eu", "local-a", "house", "vllm.a", "rules_2"])
def test_other_names_are_free(name: str) -> None:
    built = EnvelopeBuilder().with_instructions("Answer.").with_provider(LLMProvider(name), "m").build()

    assert built.provider == name
    assert json.loads(built.wire)["provider"] == name


def test_a_failure_of_a_newer_release_is_read_and_kept() -> None:
    newer = FailureReason(category=FailureKind("quota_moved"), description="new")
    written = interaction(failure=newer, success=False).wire

    read = LLMInteraction.from_wire(written)

    assert (read.failure, read.wire) == (newer, written)
    assert newer.category not in list(FailureKind)
