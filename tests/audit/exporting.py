"""Logs to export, written line by line, and the records of an export."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import duckdb
import orjson

from agentic_trading.audit.columns import typed_columns
from agentic_trading.audit.export import Exported
from agentic_trading.audit.export_files import ExportOptions, source_of
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import GENESIS, ChainHead
from agentic_trading.llm.stores.jsonl.frames import compressed_frames
from agentic_trading.llm.stores.jsonl.segments import LogFiles, SegmentContent, chained_seal
from agentic_trading.llm.stores.record_codec import write_line
from agentic_trading.platform.log_segments import export_at
from tests.build import NOW, event, interaction
from tests.event_bodies import BODIES


def records_of_every_kind(*tenants: str) -> list[bytes]:
    """Return an event of every kind and interactions of all forms, spread over tenants."""
    events = [
        body.as_event(
            event_id=f"e{number}", trace_id="t", tenant_id=tenants[number % len(tenants)], time=NOW, as_of=NOW
        ).wire
        for number, body in enumerate(BODIES)
    ]
    failure = {"category": "refusal", "description": "it's “no”, \x85\u2028 and \U0001f600"}
    calls = [
        interaction(tenant_id=tenants[0], trace_id="t", as_of=NOW, subject="BTCUSDT", occurrence=3),
        interaction(tenant_id=tenants[-1], trace_id="t", success=False, failure=failure, raw_output=""),
        interaction(tenant_id=tenants[0], raw_output='a "b",\n\r\t\0 c', cache_read_tokens=7, latency_ms=0.1),
        interaction(
            tenant_id=tenants[-1], result=None, in_doubt=True, served_from="recorded", attempt_number=2
        ),
    ]
    return [*events, *(call.wire for call in calls)]


def write_log(path: Path, segments: Sequence[Iterable[bytes]], *, compressed: bool = False) -> Path:
    """Write records as the sealed segments of a log, and the last ones as its active segment."""
    files, head, prev = LogFiles(path), ChainHead(), GENESIS
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.seals.open("wb") as seals:
        for number, records in enumerate(segments, 1):
            content, lines = SegmentContent(head), b""
            for record in records:
                line, head = write_line(record, head)
                content.add(line, head)
                lines += line
            if number == len(segments):
                path.write_bytes(lines)
                break
            seal, line = chained_seal(content.seal(), prev)
            prev = seal.hash
            seals.write(line)
            files.sealed(seal.first).write_bytes(lines)
            if compressed:
                with files.sealed(seal.first).open("rb") as plain:
                    files.compressed(seal.first).write_bytes(b"".join(compressed_frames(plain)))
                files.sealed(seal.first).unlink()
    return path


def export(log: Path, folder: Path, *, include_active: bool = False, **options: Any) -> Exported:
    """Export a log with these options."""
    return export_at(log, folder, ExportOptions(**options), include_active=include_active)


def rows_of(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """Return the records of an export in order, with times in microseconds and bodies decoded."""
    chosen = ExportOptions(**options)
    names = typed_columns(with_lines=chosen.with_lines)
    columns = [f"epoch_us({name})" if kind == "TIMESTAMPTZ" else name for name, kind in names.items()]
    found = []
    for file in sorted(folder.rglob(f"*.{chosen.format}")):
        rows = duckdb.execute(f"SELECT {', '.join(columns)} FROM {source_of(file, chosen)}").fetchall()
        found += [dict(zip(names, row, strict=True)) for row in rows]
    for row in found:
        row["body"] = row["body"] and json.loads(row["body"])  # exact, unlike orjson
    return sorted(found, key=lambda row: row["seq"])


def expected_row(line: bytes, log: str) -> dict[str, Any]:
    """Return the values of `records.v1` from a line, written down a second time."""
    read, fields = read_line(line), orjson.loads(line)
    if "interaction_id" not in fields:
        body = fields["body"]
        reason = body["reason"] if isinstance(body.get("reason"), dict) else {}
        found = {
            "id": fields["id"], "kind": fields["kind"], "time": fields["time"], "as_of": fields["as_of"],
            "tenant": fields["tenant_id"], "trace_id": fields["trace_id"], "causation_id": fields["causation_id"],
            "subject": body.get("subject") or body.get("symbol"), "failure": reason.get("category"),
            "failure_message": reason.get("description"), "verdict": body.get("verdict"), "body": body,
        }  # fmt: skip
    else:
        asked, result = fields["envelope"], fields["result"]
        failure = result["failure"] or {}
        same = (
            "trace_id", "causation_id", "envelope_id", "parent_envelope_id", "request_hash", "occurrence",
            "subject", "workflow", "prompt_version", "as_of",
        )  # fmt: skip
        results = (
            "provider", "success", "actionable", "latency_ms", "output_tokens", "cost_nusd", "stop_reason",
            "served_from", "in_doubt", "output_hash",
        )  # fmt: skip
        found = {
            **{name: asked[name] for name in same}, **{name: result[name] for name in results},
            "id": fields["interaction_id"], "kind": "interaction", "time": fields["stored_at"],
            "tenant": asked["tenant_id"], "agent": asked["agent_id"], "model": result["model"] or asked["model"],
            "attempt": result["attempt_number"], "failure": failure.get("category"),
            "failure_message": failure.get("description"), "answer": result["raw_output"],
            "input_tokens": result["input_tokens"] + result["cache_read_tokens"]
            + result["cache_write_5m_tokens"] + result["cache_write_1h_tokens"],
        }  # fmt: skip
    day = datetime.fromisoformat(found["time"]).astimezone(UTC).date()
    for name in ("time", "as_of"):
        found[name] = found[name] and round(datetime.fromisoformat(found[name]).timestamp() * 1_000_000)
    empty = dict.fromkeys(typed_columns(with_lines=False))
    return {**empty, **found, "log": log, "seq": read.seq, "hash": read.hash, "day": day}


def lines_of(log: Path) -> list[bytes]:
    """Return the lines of a log with plain segments."""
    files = LogFiles(log)
    paths = [*(files.sealed(first) for first in files.sealed_firsts()), log]
    return [line for path in paths for line in path.read_bytes().splitlines(keepends=True)]


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of each file of a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest() for path in files}


def some_events(count: int, *, tenant: str = "default") -> list[bytes]:
    """Return plain events."""
    return [event(tenant_id=tenant).wire for _ in range(count)]
