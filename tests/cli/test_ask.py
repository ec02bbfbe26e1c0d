"""`ask` puts a question about a log to a model, prints the frames, pauses for an answer, and goes on with it."""

import json
import re
import shutil
import signal
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentic_trading.audit.trace import ID_CHARACTERS, TraceTree
from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode
from agentic_trading.client.frames import FrameOpened
from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.operate.trace_lines import TraceFrames
from tests.build import event
from tests.cli.conftest import Command
from tests.flows.dying_call import run_program
from tests.forked import ended

SPLIT = '{"conclusion":"so far","sub_tasks":[{"query":"How did the days compare?"},{"query":"Who spent most?"}],"next_action":"continue"}'
ASKS = '{"conclusion":"Which time zone is meant?","next_action":"ask_user"}'
ANALYST = '{"conclusion":"The analyst.","confidence":0.7}'
TOLD = '{"conclusion":"Tuesday, in UTC.","confidence":0.6}'
JOINED = '{"conclusion":"The analyst, on Tuesday."}'
BY_RULES = ("--max-cost", "0.05", "--provider", "rules")


@pytest.fixture
def log(session: Path, tmp_path: Path) -> Path:
    """Return the folder of a session that may be written to."""
    return shutil.copytree(session, tmp_path / "session")


def scripted(*answers: str) -> tuple[str, ...]:
    """Return the options by which the scripted provider answers in this order."""
    config = Path("ask.toml")
    config.write_text(f"[providers.scripted.options]\nanswers = {json.dumps(answers)}\n", encoding="utf-8")
    return ("--config", str(config), "--max-cost", "1", "--provider", "scripted", "--model", "scripted-1")


def test_rules_provider_splits_and_answers_parts(log: Path, command: Command) -> None:
    ended = command("ask", "Why did spend rise?", "--store", log, *BY_RULES)

    assert ended.code == ExitCode.DONE
    assert re.search(r"✓ Why did spend rise\? +2 calls", ended.out)
    assert re.search(r"  ✓ 1 Which agent spent most\? +1 call .* confidence 1\.00", ended.out)
    assert "No call failed." in ended.out


def test_ask_keeps_log_intact_and_replayable(log: Path, command: Command) -> None:
    command("ask", "Why did spend rise?", "--store", log, *BY_RULES)

    assert command("audit", "verify", log).code == ExitCode.DONE
    assert command("replay", "run", log).code == ExitCode.DONE


def test_earlier_question_is_not_evidence(log: Path, command: Command) -> None:
    first = command("ask", "Why did spend rise?", "--store", log, *BY_RULES, "--json")
    second = command("ask", "Why did spend rise?", "--store", log, *BY_RULES, "--json")

    pages = [json.loads(each.out) for each in (first, second)]
    assert pages[0]["conclusion"] == pages[1]["conclusion"]
    assert pages[0]["trace_id"] != pages[1]["trace_id"]


@pytest.mark.parametrize("characters", [None, ID_CHARACTERS], ids=["whole id", "first characters"])
def test_paused_question_resumes_with_answer(characters: int | None, log: Path, command: Command) -> None:
    paused = command("ask", "Why?", "--store", log, *scripted(SPLIT, ASKS, ANALYST))
    trace = re.search(r"--resume (\S+) --answer 1=…", paused.out)
    assert trace is not None

    told = command(
        "ask",
        "--store",
        log,
        *scripted(TOLD, JOINED)[:2],
        "--resume",
        trace[1][:characters],
        "--answer",
        "1=UTC",
        "--json",
    )

    assert paused.code == ExitCode.PAUSED
    assert "? 1 How did the days compare?" in paused.out
    assert "asks: Which time zone is meant?" in paused.out
    assert told.code == ExitCode.DONE
    page = json.loads(told.out)
    assert (page["outcome"], page["trace_id"]) == ("concluded", trace[1])
    assert page["conclusion"] == "The analyst, on Tuesday."
    assert [frame["state"] for frame in page["frames"]] == ["concluded"] * 3


def test_trace_show_folds_frames_under_calls(log: Path, command: Command) -> None:
    repeat = SPLIT.replace("Who spent most?", "How did the days compare?")
    asked = command("ask", "Why?", "--store", log, *scripted(repeat, ASKS), "--json")
    trace = json.loads(asked.out)["trace_id"]

    shown = command("trace", "show", trace, "--store", log)

    assert asked.code == ExitCode.PAUSED
    assert shown.out.count("recursion.frame_opened") == 1
    assert "frame 0 … Why?" in shown.out
    assert "frame 1 ? How did the days compare? · asks: Which time zone is meant?" in shown.out
    assert "recursion.user_asked" in shown.out
    assert "recursion.frame_closed" not in shown.out


def test_killed_question_resumes_with_same_model(log: Path, tmp_path: Path, command: Command) -> None:
    config = scripted(ANALYST)
    words = ("ask", "Why?", "--store", str(log), *config)
    killed = ended(run_program, words, ("dispatched", 1, ""), folder=tmp_path)
    assert killed.code == -signal.SIGKILL, killed.err
    opened = re.search(
        r'"kind":"recursion.frame_opened".*?"trace_id":"([^"]+)',
        (log / "interactions.jsonl").read_text("utf-8"),
    )
    assert opened is not None

    went_on = command("ask", "--store", log, *config[:2], "--resume", opened[1])

    assert went_on.code == ExitCode.DONE
    assert "The analyst." in went_on.out


def test_resume_command_includes_base_url(log: Path, command: Command) -> None:
    address = "http://127.0.0.1:1/v1"

    paused = command("ask", "Why?", "--store", log, *scripted(ASKS), "--base-url", address)

    assert f"--config ask.toml --base-url {address} --resume" in paused.out


def test_frame_without_recorded_parent_has_no_lines() -> None:
    opened = FrameOpened(
        frame_id="part",
        parent_frame_id="gone",
        depth=1,
        question="Why?",
        envelope_id="e",
        request_hash="h",
        share_nusd=1,
    )
    event = opened.as_event(
        event_id="opened", trace_id="trace", tenant_id="default", time=datetime(2026, 7, 1, tzinfo=UTC)
    )
    chain = TraceTree([event])

    lines = [TraceFrames(chain).lines(node) for node in chain.nodes]

    assert lines == [[]]


def test_repeated_part_names_answering_frame(log: Path, command: Command) -> None:
    repeat = SPLIT.replace("How did the days compare?", "Who spent most?")
    cycle = SPLIT.replace("How did the days compare?", "Why?").replace("Who spent most?", "Why?")
    config = scripted(repeat, ANALYST, JOINED)

    twice = command("ask", "Why?", "--store", log, *config)
    back = command("ask", "Why?", "--store", log, *scripted(cycle))

    assert re.search(r"= 2 Who spent most\? +same as 1", twice.out)
    assert re.search(r"= 1 Why\? +leads back to 0", back.out)
    assert "cycle" in back.out


def test_configured_general_model_is_default(log: Path, command: Command) -> None:
    scripted(ANALYST)
    with Path("ask.toml").open("a", encoding="utf-8") as file:
        file.write('[models]\ngeneral = "scripted/scripted-1"\n')

    ended = command("ask", "Why?", "--store", log, "--config", "ask.toml", "--max-cost", "1")

    assert ended.code == ExitCode.DONE
    assert "The analyst." in ended.out


def test_backtest_configuration_allows_ask(log: Path, command: Command) -> None:
    words = scripted(ANALYST)
    Path("ask.toml").write_text('mode = "backtest"\n' + Path("ask.toml").read_text("utf-8"), encoding="utf-8")

    ended = command("ask", "Why?", "--store", log, *words)

    assert ended.code == ExitCode.DONE
    assert "The analyst." in ended.out


def test_ask_writes_segments_as_configured(log: Path, command: Command) -> None:
    Path("ask.toml").write_text("[log]\nsegment_bytes = 65536\ncompress = true\n", encoding="utf-8")

    ended = command("ask", "Why did spend rise?", "--store", log, *BY_RULES, "--config", "ask.toml")

    assert ended.code == ExitCode.DONE
    sealed = sorted(each.name for each in log.glob("interactions-*"))
    assert sealed[0] == "interactions-00000000000000000001.jsonl.zst"
    assert all(name.endswith(".zst") for name in sealed)
    assert command("audit", "verify", log).code == ExitCode.DONE


def test_unanswered_question_exits_1_with_reason(log: Path, command: Command) -> None:
    ended = command("ask", "Why?", "--store", log, *scripted("no JSON", "still none"))

    assert ended.code == ExitCode.FOUND_WRONG
    assert "No answer: unusable" in ended.out
    assert "✗ Why?" in ended.out


def test_failed_call_reason_is_shown(log: Path, command: Command) -> None:
    ended = command("ask", "Why?", "--store", log, *scripted())

    assert ended.code == ExitCode.FOUND_WRONG
    assert "No answer: invalid_request" in ended.out
    assert "the script has 0 lines" in ended.out


def test_ask_estimates_calls_before_asking(log: Path, command: Command) -> None:
    ended = command("ask", "Why?", "--store", log, *scripted(ANALYST))

    said = re.search(r"A call can cost up to ([\d.]+) USD. --max-cost covers (\d+) such calls", ended.err)
    assert said is not None, ended.err
    assert int(said[2]) == int(1 / float(said[1]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["Why?"], "--max-cost is missing"),
        (["--max-cost", "1"], "QUESTION is empty"),
        (["Why?", "--resume", "x"], "QUESTION is given with --resume"),
        (["Why?", "--max-cost", "1", "--answer", "1=x"], "--answer is given without --resume"),
        (["--resume", "x", "--answer", "UTC"], "Allowed: FRAME=TEXT"),
        (["Why?", "--max-cost", "1", "--answers-from", "x"], "--answers-from is given without --resume"),
        (["Why?", "--max-cost", "-1"], "--max-cost is -1"),
        (["Why?", "--max-cost", "1", "--provider", "nobody"], "--provider is 'nobody'"),
        (["Why?", "--max-cost", "1", "--provider", "local", "--model", "x"], "--model is 'x'"),
    ],
)  # fmt: skip
def test_invalid_ask_is_refused_before_writing(
    words: list[str], says: str, log: Path, command: Command
) -> None:
    before = (log / "interactions.jsonl").read_bytes()

    ended = command("ask", *words, "--store", log)

    assert ended.code == ExitCode.BAD_INPUT
    assert says in ended.err
    assert (log / "interactions.jsonl").read_bytes() == before


def test_answers_from_is_refused_for_local_trace(log: Path, command: Command) -> None:
    trace = json.loads(command("ask", "Why?", "--store", log, *BY_RULES, "--json").out)["trace_id"]

    ended = command("ask", "--store", log, "--resume", trace, "--answers-from", log)

    assert ended.code == ExitCode.BAD_INPUT
    assert (
        "--answers-from is given without a bus. Allowed: only with --resume of a trace on a bus" in ended.err
    )


@pytest.mark.parametrize("words", [["--resume", "nothing"], ["--resume", "TRACE", "--answer", "2=x"]])
def test_resume_without_waiting_frame_is_refused(words: list[str], log: Path, command: Command) -> None:
    trace = json.loads(command("ask", "Why?", "--store", log, *BY_RULES, "--json").out)["trace_id"]

    ended = command("ask", *(word.replace("TRACE", trace) for word in words), "--store", log)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "has no recorded question" in ended.err or "Waiting frames: none" in ended.err


def test_resume_with_ambiguous_id_lists_matches(tmp_path: Path, command: Command) -> None:
    async def record() -> None:
        async with aclosing(JsonFileInteractionStore(tmp_path / "interactions.jsonl")) as store:
            for trace in ("a5d04833-one", "a5d04833-two"):
                await store.record(event(trace_id=trace))

    run_async(record())

    ended = command("ask", "--store", tmp_path, "--resume", "a5d04833")

    assert ended.code == ExitCode.FOUND_WRONG
    assert "a5d04833-one, a5d04833-two. Give more characters" in ended.err
