"""What stands beside an object and belongs into it is seen, and so is a copy that takes a detour."""

import pytest

from agentic_trading.llm.result import Stage
from tests.structured.test_candidate_selection import ANALYSIS, BUY, LOSSLESS, PLANNING, refused, taken

KINDS = ["veto: true", "- Veto = yes", "* **reduce only**: true", "Stop-Loss: 41000", "so; kill_switch: on"]


@pytest.mark.parametrize("line", KINDS)
@pytest.mark.parametrize("frame", ["{line}\n{order}", "{order}\n{line}"])
def test_protected_property_outside_object_is_refused(line: str, frame: str) -> None:
    text = frame.format(line=line, order=BUY)

    for policy in (LOSSLESS, PLANNING, ANALYSIS):
        assert refused(text, policy) == (Stage.AMBIGUOUS, "members")


@pytest.mark.parametrize(
    "line", ["Note: veto is off", "A stop loss makes sense here", "stop_loss: as in the object"]
)
def test_words_about_present_properties_are_accepted(line: str) -> None:
    order = '{"side": "BUY", "qty": 5, "stop_loss": 41000, "legs": [1]}'

    assert taken(f"{line}\n{order}").value["stop_loss"] == 41000


def test_altered_evidence_copy_is_refused() -> None:
    for copy in ("{'side': 'BUY', 'qty': 5}", '{"side": "BUY", "qty": "5"}', '{"qty": 5.0, "side": "BUY"}'):
        assert refused(f"As in {copy}.", shown=f"Evidence: {BUY}") == (Stage.AMBIGUOUS, "copied")
