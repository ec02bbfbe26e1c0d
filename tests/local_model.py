"""The local model for tests: its weights, or why a test goes without them."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentic_trading.llm.models import WeightsError, find_weights
from agentic_trading.llm.providers.local import MODEL

# The environment chooses what tests may use, as it does for other services.
FOLDER = Path(os.environ.get("AGENTIC_MODELS_DIR", "~/.cache/agentic-trading/models")).expanduser()  # noqa: TID251 - test set-up
REQUIRED = os.environ.get("REQUIRE_SERVICES") == "1"  # noqa: TID251 - test set-up


def weights_or_skip() -> Path:
    """Return the weights; skips the test where they or llama.cpp are not here, or fails it where they must be."""
    missing = "" if find_spec("xllamacpp") else "xllamacpp is not installed"
    try:
        path = find_weights(FOLDER, MODEL)
    except WeightsError as e:
        path, missing = FOLDER, str(e)
    if missing and REQUIRED:
        pytest.fail(f"no local model: {missing}")
    if missing:
        pytest.skip(f"no local model: {missing}")
    return path
