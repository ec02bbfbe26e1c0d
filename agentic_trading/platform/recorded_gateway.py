"""The record that `replay run FOLDER -- COMMAND` gives to the gateways of a program."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from tempfile import mkdtemp

from agentic_trading.audit.logs import logs_at
from agentic_trading.llm.envelope import ResponseFormat
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.logger import get_logger
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.settings import REPLAY_FROM, replay_folders

log = get_logger()

_recordings: dict[Path, port_adapters.Recording] = {}
"""The answers by record. One for all gateways of a process, because each record answers one call."""


async def recorded_attempts_in(path: Path, *, option: str) -> AsyncGenerator[LLMInteraction]:
    """Yield the attempts in the logs at `path`, in their order.

    Raises:
        OptionError: If no log is at `path`. The message names `option`.
        StoreError: If a log cannot be read.

    """
    logs = await asyncio.to_thread(logs_at, path)
    if not logs:
        raise OptionError(option, f"{path}, where there is no log", "a log, or the folder of a log")
    for each in logs:
        async with aclosing(port_adapters.records_of(each)) as records, aclosing(records.scan()) as entries:
            async for entry in entries:
                if isinstance(entry.record, LLMInteraction):
                    yield entry.record


async def replayed_gateway() -> tuple[port_adapters.Recording, Path] | None:
    """Return the recorded answers and a new folder for the log of this gateway, or None outside a replay.

    Raises:
        OptionError: If the environment names a record that does not exist.
        StoreError: If the record cannot be read.

    """
    folders = replay_folders()
    if folders is None:
        return None
    record, logs = folders
    if record not in _recordings:
        _recordings[record] = await _recording(record)
    # A variable that was left in a shell would else make a trading program act on old answers unseen.
    log.warning("gateway_replays_a_record", record=str(record), variable=REPLAY_FROM)
    return _recordings[record], Path(await asyncio.to_thread(mkdtemp, dir=logs))


async def _recording(record: Path) -> port_adapters.Recording:
    answers = port_adapters.recording()
    async with aclosing(recorded_attempts_in(record, option=REPLAY_FROM)) as attempts:
        async for attempt in attempts:
            if attempt.envelope.response_format is not ResponseFormat.VERBATIM:
                answers.add(attempt)
    return answers
