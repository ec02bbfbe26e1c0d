"""What a log and the process that writes it say of themselves, and a client of its calls."""

from pydantic import BaseModel

from agentic_trading.llm.errors import FailureReason
from agentic_trading.llm.event import EventBody, Kinds
from agentic_trading.llm.fields import JsonObject, Moment


class TailSetAside(EventBody, frozen=True):
    """A torn end of the log was set aside: so many `bytes`, kept in the file `kept_as` beside the log."""

    KIND = "log.tail_set_aside"

    bytes: int
    kept_as: str
    sha256: str


class RunData(BaseModel, frozen=True):
    """One feed of a run, as it was named."""

    name: str
    symbol: str


class RunStarted(EventBody, frozen=True):
    """A process begins to write a run into the log.

    A run has one of these for each process that wrote it: the first has `start_number` 1, and one that goes on with what
    another one has left is `resumed`. `session_id` and `run_number` name the run. `first_seq` is the number of the log's
    line before the run's first one. `config_sha256` is that of the configuration, without secrets. Where several workers
    share a bus, a log `shares_traces`: what caused one of its records may be in the log of another one.
    """

    KIND = "run.started"

    session_id: str
    run_number: int = 1
    start_number: int = 1
    resumed: bool = False
    mode: str
    provider: str = ""
    model: str = ""
    data: tuple[RunData, ...] = ()
    seed: str = ""
    package: str
    config_sha256: str = ""
    first_seq: int = 0
    shares_traces: bool = False


class FedBars(BaseModel, frozen=True):
    """The file of the bars that a run was fed of one symbol: its rows without the header, and its SHA-256.

    `marks` are the first 16 hexadecimal digits of the SHA-256 of the file up to and with each 256th row: they say about
    where a changed file parts from this one.
    """

    symbol: str
    rows: int
    sha256: str
    marks: tuple[str, ...] = ()


class RunEnded(EventBody, frozen=True):
    """The process of a `run.started`, its cause, stops writing; a process that is killed leaves none of these.

    The log had `lines` lines before this one, the last with the hash `head`. `interrupted` says that the run did not come
    to its end: by a signal, or by an error. `digest` is that of the decision log, `bars` are those of all processes of
    the run together.
    """

    KIND = "run.ended"

    session_id: str
    run_number: int = 1
    bars_done: int = 0
    interrupted: bool = False
    digest: str | None = None
    lines: int
    head: str
    bars: tuple[FedBars, ...] = ()


class ArchiveStarted(EventBody, frozen=True):
    """The log is an archive: it has the records of other logs, in the order in which they came.

    What a `run.ended` in it says of lines is about the log in which the run was written.
    """

    KIND = "archive.started"

    archive_id: str


class CallRequested(EventBody, frozen=True):
    """A client with a log of its own is about to publish an envelope; `envelope` is that, in canonical JSON what goes out.

    It is never on a bus. A secret in it is left out, and its hash then is that of another one.
    """

    KIND = "call.requested"

    envelope: JsonObject


class CallUnanswered(EventBody, frozen=True):
    """A call, whose `call.requested` is the cause, ended without its last attempt, for `reason`."""

    KIND = "call.unanswered"

    reason: FailureReason


class EnvelopeRefused(EventBody, frozen=True):
    """A worker did not run an envelope, because of its send time; nothing was paid.

    `reason` and `detail` are those of the dead letter. `sent_at` is None for a send time that is not a time.
    """

    KIND = "envelope.refused"

    envelope_id: str
    envelope_hash: str
    reason: str
    detail: str
    sent_at: Moment | None = None


LogBody = (
    TailSetAside | RunStarted | RunEnded | ArchiveStarted | CallRequested | CallUnanswered | EnvelopeRefused
)

KINDS = Kinds[LogBody](
    TailSetAside, RunStarted, RunEnded, ArchiveStarted, CallRequested, CallUnanswered, EnvelopeRefused
)
