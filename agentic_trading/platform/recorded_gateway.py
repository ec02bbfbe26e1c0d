"""The record that `replay run FOLDER -- COMMAND` gives to the gateways of a program."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from typing_extensions import override

from agentic_trading.audit.logs import logs_at
from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.store import LOG_NAME, Record
from agentic_trading.logger import get_logger
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.settings import REPLAY_FROM, replay_folders

log = get_logger()

CLAIMS: Final = "claims"
"""The folder of the records that a process has taken, next to the logs of a replay."""

_recordings: dict[tuple[Path, ...], "SharedRecording"] = {}
"""The answers by logs. One for all gateways of a process with the same logs, because each record answers one call."""


class SharedRecording(port_adapters.Recording):
    """Serve the answers of a record to several processes, so that each record answers one call of one of them.

    Args:
        claims: The folder in which the processes claim records. Each file is a claim.

    """

    def __init__(self, claims: Path) -> None:
        super().__init__()
        self._claims = claims
        self._claimed: set[str] = set()

    @override
    async def find(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        """Return the recorded result of an attempt, or None. Other processes have not got it."""
        while (found := await super().find(envelope, attempt)) is not None:
            recorded = self.recorded_for(envelope)
            if recorded == envelope.envelope_id or await self._claim(envelope, recorded):
                return found
            self.pass_over(envelope, attempt)
        return None

    async def _claim(self, envelope: LLMEnvelope, recorded: str) -> bool:
        """Claim a record, and return whether this process has it."""
        place = (envelope.tenant_id, envelope.agent_id, envelope.step, envelope.request_hash, recorded)
        name = sha256(canonical_bytes(place)).hexdigest()
        if name not in self._claimed:
            if not await asyncio.to_thread(_created, self._claims / name):
                return False
            self._claimed.add(name)
        return True


def _created(file: Path) -> bool:
    """Create a file, and return whether no other process had created it."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def all_records_in(path: Path, *, option: str) -> AsyncGenerator[Record]:
    """Yield the records of the logs at `path`, in their order.

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
                yield entry.record


async def recorded_attempts_in(path: Path, *, option: str) -> AsyncGenerator[LLMInteraction]:
    """Yield the attempts in the logs at `path`, in their order. Raises the errors of `all_records_in`."""
    async with aclosing(all_records_in(path, option=option)) as records:
        async for record in records:
            if isinstance(record, LLMInteraction):
                yield record


async def replayed_gateway(folder: Path | None) -> tuple[port_adapters.Recording, Path] | None:
    """Return the recorded answers and a new folder for the log of this gateway, or None outside a replay.

    The answers are those of the gateway's own log if `folder` is in the record. Otherwise they are those of all logs.

    Raises:
        OptionError: If the environment names a record that does not exist.
        StoreError: If the record cannot be read.

    """
    folders = replay_folders()
    if folders is None:
        return None
    record, logs = folders
    known = await asyncio.to_thread(_own_logs, record, folder)
    if known not in _recordings:
        claims = logs / CLAIMS
        await asyncio.to_thread(claims.mkdir, exist_ok=True)
        _recordings[known] = await _recording(known, claims)
    # A variable that was left in a shell would else make a trading program act on old answers unseen.
    log.warning("gateway_replays_a_record", record=str(record), variable=REPLAY_FROM)
    return _recordings[known], Path(await asyncio.to_thread(mkdtemp, dir=logs))


def _own_logs(record: Path, folder: Path | None) -> tuple[Path, ...]:
    """Return the log of a gateway with this folder, or the whole record if the log is not in it."""
    own = None if folder is None else (folder / LOG_NAME).resolve()
    return next(((each,) for each in logs_at(record) if each.resolve() == own), (record,))


async def _recording(paths: Sequence[Path], claims: Path) -> SharedRecording:
    answers = SharedRecording(claims)
    for path in paths:
        async with aclosing(recorded_attempts_in(path, option=REPLAY_FROM)) as attempts:
            async for attempt in attempts:
                if attempt.envelope.response_format is not ResponseFormat.VERBATIM:
                    answers.add(attempt)
    return answers
