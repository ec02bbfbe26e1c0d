"""Weights are found by name, and used only if they are the published ones."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import (
    WEIGHTS,
    Weights,
    WeightsError,
    find_weights,
    verify_weights,
    weights_of,
)

CONTENT = b"not a model"
SMALL = replace(WEIGHTS["smollm2-135m"], size_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


def stored(folder: Path, content: bytes, weights: Weights = SMALL) -> Path:
    path = folder / weights.file
    path.write_bytes(content)
    return path


def test_weights_table_contains_small_model() -> None:
    weights = weights_of("smollm2-135m")

    assert weights.member.endswith(weights.file)
    assert (weights.license, len(weights.sha256)) == ("Apache-2.0", 64)


def test_unknown_weights_error_lists_known_models() -> None:
    with pytest.raises(UnknownModelError, match="known are smollm2-135m"):
        weights_of("gpt-9")


def test_published_weights_pass(tmp_path: Path) -> None:
    verify_weights(stored(tmp_path, CONTENT), SMALL)


def test_wrong_checksum_error_names_expected(tmp_path: Path) -> None:
    path = stored(tmp_path, CONTENT[::-1])

    with pytest.raises(WeightsError, match=SMALL.sha256) as wrong:
        verify_weights(path, SMALL)

    assert (wrong.value.path, wrong.value.model) == (path, "smollm2-135m")
    assert "agentic-trading models fetch smollm2-135m" in str(wrong.value)


def test_truncated_file_is_reported_by_size(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="it has 3 bytes, the published weights have 11"):
        verify_weights(stored(tmp_path, CONTENT[:3]), SMALL)


def test_missing_weights_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="there is no such file"):
        find_weights(tmp_path, "smollm2-135m")


def test_overlong_weights_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="File name too long"):
        verify_weights(tmp_path / ("a" * 300), SMALL)


def test_unreadable_weights_file_is_reported() -> None:
    with pytest.raises(WeightsError, match="cannot be read"):
        verify_weights(Path("/proc/self/mem"), replace(SMALL, size_bytes=0))


def test_weights_found_by_name_and_size(tmp_path: Path) -> None:
    path = tmp_path / SMALL.file
    with path.open("wb") as file:
        file.truncate(WEIGHTS["smollm2-135m"].size_bytes)

    assert find_weights(tmp_path, "smollm2-135m") == path
