"""`agentic-trading dlq` lists, shows, replays and deletes the dead letters of a real Kafka."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

from agentic_trading.bus.brokers.kafka.admin import create_topics, planned_topics
from agentic_trading.bus.codec import envelope_message, read_dead_letter, read_interaction
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import REPLAYED_HEADER, Signer, Verifier
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, DeadLetter
from agentic_trading.cli.dlq_tables import show_list, show_one
from agentic_trading.cli.exits import ExitCode
from agentic_trading.client.gateway import GatewayClient
from agentic_trading.clock import SystemClock
from agentic_trading.llm import LLMEnvelope, LLMInteraction
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.operate.dead_letters import LetterFilter, LetterScan, ListedLetter
from agentic_trading.services.local import KafkaService
from agentic_trading.worker.delivery import SendAge
from tests import kafka_server
from tests.cli.conftest import Command
from tests.gateway import GOOD, START, asking, gateway
from tests.worker.running import running
from tests.worker.ticking import with_pool

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)

DESK, NEWCOMER = Signer("desk-a", b"k" * 32), Signer("desk-b", b"o" * 32)
LANE = ENVELOPES[asking().build().workflow]
ADDRESS = "5f0e6c1e-6a1c-4c0e-9d0f-8f5b6f3f8a11"
STEERS = "\x1b[2J"
POISON = f"{{broken{STEERS}".encode()


def changed(envelope: LLMEnvelope, **fields: object) -> Message:
    """Return the message of an envelope with fields changed after it was sealed."""
    message = envelope_message(envelope, sent_at=SystemClock().now())
    value = json.dumps(json.loads(message.value) | fields).encode()
    return Message(message.key, value, message.headers)


def given_up() -> dict[str, Message]:
    """Return messages that no worker serves, by their reasons."""
    real = envelope_message(asking(n=1).build(), reply_to=ADDRESS, sent_at=SystemClock().now())
    return {
        "decode": DESK.sign(Message("poison", POISON, {"ce_id": "e-1", "x-note": STEERS})),
        "checksum": DESK.sign(changed(asking(n=2).build(), instructions="Other words.")),
        "schema_version": DESK.sign(changed(asking(n=3).build(), schema_version="9.0")),
        "must_understand": DESK.sign(changed(asking(n=4).build(), must_understand=["venue_hint"])),
        "signature": NEWCOMER.sign(real),
    }


async def set_up(servers: str, messages: dict[str, Message]) -> LLMInteraction:
    """Let a pool give messages up, and answer an envelope that has expired; return the answer."""
    await create_topics(kafka_server.settings(servers), planned_topics(partitions=2))
    async with aclosing(kafka_server.broker(servers)) as broker:
        desk = with_pool(
            gateway(lambda _request: GOOD, broker=broker), verifier=Verifier({"desk-a": (b"k" * 32,)})
        )
        await broker.publish_all(LANE, [*messages.values()])
        letters = await broker.subscribe([DEAD_LETTERS], "test")
        async with running(desk), GatewayClient(broker, signer=DESK, reply_timeout_s=30) as client:
            answer = await client.ask(asking().with_deadline(START - timedelta(hours=1)).build())
            for _ in messages:
                read_dead_letter((await letters.take()).message)
    assert isinstance(answer, LLMInteraction)
    return answer


async def replies(servers: str) -> tuple[int, list[LLMInteraction]]:
    """Run a pool that knows both principals; return how many calls it made, and two replies to the address."""
    calls: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        calls.append(request)
        return GOOD

    known = Verifier({"desk-a": (b"k" * 32,), "desk-b": (b"o" * 32,)})
    async with aclosing(kafka_server.broker(servers)) as broker:
        heard = await broker.replies(ADDRESS)
        async with running(with_pool(gateway(answer, broker=broker), verifier=known)):
            found = [read_interaction((await heard.take()).message) for _ in range(2)]
    return len(calls), found


def check_list(command: Command, bus: Sequence[str], ids: Mapping[str, str]) -> None:
    """Choose letters by reason, topic and time, and the newest ones."""
    shown = command("dlq", "list", *bus, "--limit", "2")
    assert shown.out.endswith(" (the newest 2 are listed)\n")
    assert shown.out.count("\n") == 4
    decoded = command("dlq", "list", *bus, "--reason", "decode", "--topic", LANE.name, "--since", "1000d")
    assert [reason for reason, id_ in ids.items() if id_ in decoded.out] == ["decode"]
    for option, value, what in (
        ("--topic", "llm.events", "from this topic"),
        ("--reason", "x", "with this reason"),
    ):
        none = command("dlq", "list", *bus, option, value).out
        assert none.startswith(f"No dead letters {what}. Existing letters: "), none
    assert (
        command("dlq", "list", *bus, "--since", "2100-01-01").out
        == "No matching dead letters (5 in total).\n"
    )


def check_show(command: Command, bus: Sequence[str], ids: Mapping[str, str]) -> None:
    """Show one letter, and ask for one that there is not."""
    one = command("dlq", "show", ids["decode"], *bus)
    assert STEERS not in one.out
    assert one.out.count("\\x1b[2J") == 2
    assert all(
        text in one.out for text in ("llm.envelopes.analysis, partition", "poison", "x-note", "replayable")
    )
    assert command("dlq", "show", ids["decode"], *bus, "--raw").out == POISON.decode()
    assert json.loads(command("dlq", "show", ids["decode"], *bus, "--json").out)["key"] == "poison"
    assert command("dlq", "show", ids["decode"][:-2], *bus, "--raw").out == POISON.decode()
    unknown = command("dlq", "show", ids["decode"][1:], *bus)
    assert unknown.code == ExitCode.FOUND_WRONG
    assert f"The nearest are {ids['decode']}" in unknown.err


def check_replay(command: Command, bus: Sequence[str], ids: Mapping[str, str], servers: str) -> None:
    """Replay a letter as a new envelope, and twice as it was."""
    replay = ("dlq", "replay", *bus)
    asked = command(*replay, "--reason", "signature")
    assert (asked.code, asked.out) == (ExitCode.BAD_INPUT, "")
    assert "the replay must be confirmed, but there is no terminal. Use --yes to confirm." in asked.err
    refused = command(*replay, ids["signature"], ids["checksum"], "--again", "--yes", "--json")
    assert refused.code == ExitCode.FOUND_WRONG
    assert json.loads(refused.out)["replayed"] == []
    assert "'desk-b' has signed it, and --again makes it another envelope. Use --sign-as" in refused.err
    assert "it contains no readable envelope (checksum: envelope_hash does not" in refused.err
    missing = command(*replay, "--reason", "signatures", "--yes")
    assert (missing.code, "has the reason 'signatures'. The nearest are signature, " in missing.err) == (
        1,
        True,
    )
    Path("principals").mkdir()
    Path("principals/desk-a").write_bytes(b"k" * 32)
    Path("agentic-trading.toml").write_text('principals_folder = "principals"\n', encoding="utf-8")
    unknown = command(*replay, ids["signature"], "--again", "--sign-as", "desk-b", "--yes")
    assert (unknown.code, "--sign-as is 'desk-b'. Allowed: desk-a" in unknown.err) == (
        ExitCode.BAD_INPUT,
        True,
    )
    swept = command(*replay, "--reason", "signature", "--again", "--sign-as", "desk-a", "--yes")
    assert (swept.code, swept.out) == (ExitCode.FOUND_WRONG, "Replayed 0 messages. 1 not replayed.\n")
    assert (
        "signature: its sender was not proved, or may not send it. Inspect it, then name its id with --again"
        in swept.err
    )
    again = command(*replay, ids["signature"], "--again", "--sign-as", "desk-a", "--yes")
    assert (again.code, again.out) == (ExitCode.DONE, "Replayed 1 message.\n")
    for chosen in (["--reason", "signature"], [ids["signature"]]):
        done = command(*replay, *chosen, "--yes")
        assert (done.code, done.out) == (ExitCode.DONE, "Replayed 1 message.\n")
        assert "1 message to be published unchanged: 1 to llm.envelopes.analysis\n" in done.err
    calls, (first, second) = asyncio.run(replies(servers))
    assert calls == 2  # the new envelope, and the one as it was: it ran once, and was answered twice
    assert first == second
    assert first.result.actionable


def check_purge(command: Command, bus: Sequence[str], ids: Mapping[str, str]) -> None:
    """Delete nothing, then all."""
    purged = command("dlq", "purge", *bus, "--before", "1000d", "--yes")
    assert (purged.code, purged.out) == (ExitCode.DONE, "Deleted 0 messages.\n")
    purged = command("dlq", "purge", *bus, "--all", "--yes")
    assert (
        "5 messages in llm.dead-letters will be deleted for all readers. This cannot be undone." in purged.err
    )
    assert (purged.code, purged.out) == (ExitCode.DONE, "Deleted 5 messages.\n")
    assert command("dlq", "list", *bus).out == "No dead letters.\n"
    assert command("dlq", "replay", *bus, "--all").out == "Replayed 0 messages.\n"
    gone = command("dlq", "replay", *bus, ids["signature"], "--yes")
    assert (gone.code, gone.err.count("\n")) == (ExitCode.FOUND_WRONG, 1)


def test_dead_letters_are_listed_replayed_and_purged(own_kafka: KafkaService, command: Command) -> None:
    servers = own_kafka.bootstrap_servers
    bus = ("--bus", f"kafka://{servers}")
    messages = given_up()
    answer = asyncio.run(set_up(servers, messages))

    listed = json.loads(command("dlq", "list", *bus, "--json").out)
    ids = {each["reason"]: each["id"] for each in listed["letters"]}
    assert listed["reasons"] == dict.fromkeys(messages, 1)
    assert {each["copies"] for each in listed["letters"]} == {1}
    assert {each["problem"] for each in listed["letters"]} == {""}
    assert answer.result.failure is not None
    assert answer.result.failure.category == "expired"  # it is on record, and no dead letter

    check_list(command, bus, ids)
    check_show(command, bus, ids)
    check_replay(command, bus, ids, servers)
    check_purge(command, bus, ids)


def test_replayed_letter_lists_the_original(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = DeadLetter.of(
        Delivery(LANE.name, 7, Message("k", b"x", {}), 1), reason="decode", time=START, detail=""
    )
    again = Message("k", b"x", {REPLAYED_HEADER: first.id})
    second = DeadLetter.of(Delivery(LANE.name, 8, again, 1), reason="decode", time=START, detail="")

    for letters in ([first], [first, second]):
        listed = [ListedLetter.of(each, SendAge()) for each in letters]
        show_list(listed, LetterScan(), LetterFilter(), limit=9, as_json=False)

    alone, both = capsys.readouterr().out.split("1 dead letter: decode 1\n")
    assert "replay of" not in alone
    assert "envelope  " not in both  # no letter has one
    assert both.count(first.id) == 2


def test_truncated_binary_message_is_shown_with_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    delivery = Delivery(LANE.name, 7, Message("k", b"\xff" * 5000, {}), 1)
    letter = DeadLetter.of(delivery, reason="decode", detail="", time=START).small()

    show_one(letter, 1, SendAge(), as_json=False)

    said = capsys.readouterr()
    assert "  4,000 bytes that are not text (--raw prints them)" in said.out
    assert "no: it holds 4000 of 5000 bytes" in " ".join(said.out.split())
    assert "only the first 4000 of 5000 bytes" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list", "--since", "soon"], "--since is 'soon'. Allowed: 2026-06-20, 2026-06-20T10:00Z, now"),
        (["replay"], "select letters with exactly one of: ids, --reason WORD, --all"),
        (["replay", "--all", "--reason", "decode"], "select letters with exactly one of: ids"),
        (["replay", "--all", "--sign-as", "desk-a"], "--sign-as requires --again"),
        (
            ["replay", "--all", "--again", "--sign-as", "desk-a"],
            "none, because the configuration has no principals_folder",
        ),
        (["purge"], "select letters with --before TIME or --all"),
        (["purge", "--all", "--before", "7d"], "--before and --all cannot be used together"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_connecting(words: list[str], said: str, command: Command) -> None:
    ended = command("dlq", *words, "--bus", "kafka://127.0.0.1:1")

    assert ended.code == ExitCode.BAD_INPUT
    assert said in ended.err


def test_unusable_bus_error_is_single_line(command: Command) -> None:
    away = command("dlq", "list", "--bus", "kafka://127.0.0.1:1")
    none = command("dlq", "purge", "--all", "--bus", "kafka://host")

    assert (away.code, away.err.count("\n")) == (ExitCode.LOG_UNUSABLE, 1)
    assert "Servers: 127.0.0.1:1. Check that they are running and reachable" in away.err
    assert (none.code, none.err.count("\n")) == (ExitCode.BAD_INPUT, 1)
    assert "bus.url is a URL without a port. Allowed: kafka://HOST:PORT" in none.err
    assert command("dlq", "list").err == (
        "Error: --bus is missing. Allowed: kafka://HOST:PORT, redis://HOST:PORT, or url in [bus] of the configuration\n"
    )
