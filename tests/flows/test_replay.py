"""A session again, from its own record: the same digest, no network, and every difference named."""

import socket
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.analysis.analyst import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.errors import StoreError
from agentic_trading.platform.errors import OptionError
from agentic_trading.replay import NetworkBlockedError
from tests.flows.sessions import SAMPLES, contents, ran, rows_in, write


@pytest.mark.parametrize("workers", [1, 8])
async def test_a_replay_gives_the_same_digest_with_any_number_of_workers(
    workers: int, recorded: RunReport, tmp_path: Path
) -> None:
    before = contents(tmp_path)

    report = await replay(tmp_path, workers=workers)

    assert report.identical
    assert report.digest == report.recorded_digest == recorded.digest
    assert (report.misses, report.unused, report.first_difference, report.request_changes) == (0, 0, None, ())
    assert report.bars == sum(each.bars for each in recorded.data)
    assert report.answered > 10
    assert contents(tmp_path) == before


def with_field(workflow: EnvelopeWorkflow, **changes: Any) -> Any:
    """Return an edit that changes fields of the envelopes of one workflow."""

    def edit(asked: LLMEnvelope) -> LLMEnvelope:
        return asked.model_copy(update=changes) if asked.workflow is workflow else asked

    return edit


async def test_a_changed_word_of_a_prompt_is_named_with_its_place(
    recorded: RunReport, tmp_path: Path
) -> None:
    def edit(asked: LLMEnvelope) -> LLMEnvelope:
        if asked.workflow is not EnvelopeWorkflow.EXECUTION:
            return asked
        return asked.model_copy(update={"instructions": asked.instructions.replace(" the ", " a ", 1)})

    report = await replay(tmp_path, edit=edit)

    (change,) = report.request_changes
    assert not report.identical
    assert change.startswith("instructions, at character ")
    assert " the " in change.partition(", is ")[0]
    assert report.first_difference is not None
    assert "(call of " in report.first_difference
    assert report.misses == 1
    assert report.unused > 0
    assert report.bars < sum(each.bars for each in recorded.data)


async def test_an_edit_of_the_analysts_prompt_is_a_changed_request_and_no_silent_difference(
    recorded: RunReport, tmp_path: Path
) -> None:
    def edit(asked: LLMEnvelope) -> LLMEnvelope:
        if asked.workflow is not EnvelopeWorkflow.ANALYSIS:
            return asked
        edited = CMT_ASSESSMENT_PROMPT.text.replace(
            "the longer one weighs more", "the shorter one weighs more"
        )
        return asked.model_copy(
            update={"instructions": edited, "prompt_version": sha256_hex(edited.encode())[:16]}
        )

    report = await replay(tmp_path, edit=edit)

    assert not report.identical
    assert report.misses >= 1
    assert [change.partition(",")[0].partition(":")[0] for change in report.request_changes] == [
        "instructions",
        "prompt_version",
    ]
    assert "longer" in report.request_changes[0]


@pytest.mark.parametrize(
    ("field", "value"), [("model", "scripted-1"), ("temperature", 0.5), ("prompt_version", "another")]
)
async def test_any_change_of_a_request_is_named(
    field: str, value: Any, recorded: RunReport, tmp_path: Path
) -> None:
    report = await replay(tmp_path, edit=with_field(EnvelopeWorkflow.ANALYSIS, **{field: value}))

    assert [change.partition(":")[0] for change in report.request_changes] == [field]


async def test_a_change_that_no_answer_depends_on_changes_nothing(
    recorded: RunReport, tmp_path: Path
) -> None:
    edit = with_field(EnvelopeWorkflow.ANALYSIS, agent_type="somebody else", priority=7)

    assert (await replay(tmp_path, edit=edit)).identical


def reach_out(asked: LLMEnvelope) -> LLMEnvelope:
    with socket.socket() as opened:
        opened.settimeout(0)
        opened.connect(("127.0.0.1", 9))
    return asked


async def test_an_agent_that_reaches_for_the_network_ends_the_replay(
    recorded: RunReport, tmp_path: Path
) -> None:
    with pytest.raises(NetworkBlockedError, match=r"socket\.connect during a replay"):
        await replay(tmp_path, edit=reach_out)

    assert (await replay(tmp_path)).identical


@pytest.mark.parametrize("field", ["close", "volume"])
async def test_a_bar_that_was_changed_afterwards_is_found_and_played_only_where_that_is_asked_for(
    field: str, recorded: RunReport, tmp_path: Path
) -> None:
    path = tmp_path / "bars-BTCUSDT.csv"
    rows = rows_in(path)
    place = rows[0].split(",").index(field)
    cells = rows[480].split(",")
    cells[place] = cells[place][:-1] + ("1" if cells[place][-1] != "1" else "2")
    cells[2] = str(max(float(cells[2]), float(cells[4])))
    write(path, [*rows[:480], ",".join(cells), *rows[481:]])

    with pytest.raises(
        StoreError, match=r"bars-BTCUSDT\.csv:258: .* between lines 258 and 513\. With `--allow-inc"
    ):
        await replay(tmp_path)
    report = await replay(tmp_path, allow_incomplete=True)

    assert not report.identical
    assert report.misses == 1
    assert report.request_changes
    assert all(change.startswith(("evidence E", "context")) for change in report.request_changes)


@pytest.mark.parametrize(("old", "new"), [(b'"verdict":"accepted"', b'"verdict":"refusal"'), (b"{", b"<")])
async def test_a_decision_log_that_was_changed_afterwards_is_found(
    old: bytes, new: bytes, recorded: RunReport, tmp_path: Path
) -> None:
    path = recorded.decision_log
    path.write_bytes(path.read_bytes().replace(old, new, 1))

    report = await replay(tmp_path)

    assert not report.identical
    assert report.digest == report.recorded_digest
    assert report.first_difference is not None


@pytest.mark.parametrize("name", ["decisions.jsonl", "bars-ETHUSDT.csv", "interactions.jsonl"])
async def test_a_file_that_is_not_there_any_more_is_named(
    name: str, recorded: RunReport, tmp_path: Path
) -> None:
    (tmp_path / name).unlink()

    with pytest.raises(StoreError, match=name):
        await replay(tmp_path)


async def test_a_broken_log_is_not_replayed(recorded: RunReport, tmp_path: Path) -> None:
    lines = recorded.log.read_bytes().split(b"\n")
    lines[7] = lines[7].replace(b'"time"', b'"tide"', 1)
    recorded.log.write_bytes(b"\n".join(lines))

    with pytest.raises(StoreError, match=r"interactions\.jsonl:8: "):
        await replay(tmp_path)


@pytest.mark.parametrize("run", [2, 9])
async def test_a_run_that_is_not_there_is_told(run: int, recorded: RunReport, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"run {run}; allowed: a run from 1 to 1"):
        await replay(tmp_path, run=run)


async def test_a_folder_without_a_session_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a folder that `run --out` made"):
        await replay(tmp_path / "nothing")


async def test_the_recorded_provider_gives_the_same_decisions_in_another_folder(
    recorded: RunReport, tmp_path: Path
) -> None:
    again = await ran(tmp_path / "again", provider="recorded", recorded_from=tmp_path, workers=8)

    assert again.digest == recorded.digest
    assert (again.attempts, again.pnl, again.fills) == (recorded.attempts, recorded.pnl, recorded.fills)
    assert again.cost_nusd == 0
    assert (await replay(tmp_path / "again")).identical


async def test_the_recorded_provider_needs_only_the_bars_it_is_asked_about(tmp_path: Path) -> None:
    await ran(tmp_path / "whole", data=SAMPLES[:1], bars=450)

    part = await ran(
        tmp_path / "part", data=SAMPLES[:1], bars=350, provider="recorded", recorded_from=tmp_path / "whole"
    )

    assert part.attempts > 0
    assert orjson.loads((tmp_path / "part" / "run.json").read_bytes())["answers"] == "recorded"
