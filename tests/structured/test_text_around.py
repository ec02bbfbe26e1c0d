"""What stands beside an object and belongs into it is seen, and so is a copy that takes a detour."""

import pytest

from agentic_trading.llm.result import Stage
from tests.structured.test_candidate_selection import ANALYSIS, BUY, LOSSLESS, PLANNING, refused, taken

KINDS = ["veto: true", "- Veto = yes", "* **reduce only**: true", "Stop-Loss: 41000", "so; kill_switch: on"]


@pytest.mark.parametrize("line", KINDS)
@pytest.mark.parametrize("frame", ["{line}\n{order}", "{order}\n{line}"])
def test_a_protected_property_beside_the_object_refuses_it(line: str, frame: str) -> None:
    text = frame.format(line=line, order=BUY)

    for policy in (LOSSLESS, PLANNING, ANALYSIS):
        assert refused(text, policy) == (Stage.AMBIGUOUS, "members")


@pytest.mark.parametrize(
    "line", ["Note: veto is off", "A stop loss makes sense here", "stop_loss: as in the object"]
)
def test_words_about_what_is_in_the_object_do_not(line: str) -> None:
    order = '{"side": "BUY", "qty": 5, "stop_loss": 41000, "legs": [1]}'

    assert taken(f"{line}\n{order}").value["stop_loss"] == 41000


def test_a_copy_with_a_slip_or_with_numbers_in_words_is_a_copy() -> None:
    for copy in ("{'side': 'BUY', 'qty': 5}", '{"side": "BUY", "qty": "5"}', '{"qty": 5.0, "side": "BUY"}'):
        assert refused(f"As in {copy}.", shown=f"Evidence: {BUY}") == (Stage.AMBIGUOUS, "copied")
