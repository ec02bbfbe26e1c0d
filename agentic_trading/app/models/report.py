"""The report of a live check: for people in Markdown, for programs in JSON."""

import os
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from agentic_trading.app.models.live_check import LiveCheckProof
from agentic_trading.governance.prices import short_id
from agentic_trading.llm.limits import NANO

VERDICTS = ("as told", "differs", "not proved")


class LiveReport(BaseModel, frozen=True):
    """What a live check found on `checked_on` (UTC).

    `address` is `the provider's own` or `another one`; no key stands in any line. `price_book` names
    the book that the costs were computed with; the provider's console says whether it billed the same.
    """

    version: str
    checked_on: date
    address: str
    price_book: str
    max_nusd: int
    proofs: tuple[LiveCheckProof, ...]

    @property
    def cost_nusd(self) -> int:
        """What all requests were charged together, in nano-dollars."""
        return sum(proof.cost_nusd for proof in self.proofs)

    @property
    def proved(self) -> bool:
        """Whether every line came out as the table tells, and every model was asked all there is."""
        lines = [line for proof in self.proofs for line in proof.lines]
        return all(line.verdict == "as told" for line in lines) and not any(p.stopped for p in self.proofs)


_REPORT = TypeAdapter(LiveReport)


def as_json(report: LiveReport) -> str:
    """Return the report as a JSON document; amounts are in nano-dollars."""
    return _REPORT.dump_json(report, indent=2).decode()


def as_markdown(report: LiveReport) -> str:
    """Return the report as a page."""
    return "\n".join([*_head(report), *(line for proof in report.proofs for line in _of_model(proof))])


def cannot_write(page: Path) -> str:
    """Return why no report can be written to `page` or beside it, or nothing; found out before money is spent."""
    if page.suffix == ".json":
        return f"{page} is where the JSON goes; allowed is a name for the page, such as {page.with_suffix('.md')}"
    for file in (page, page.with_suffix(".json")):
        place = file if file.exists() else file.parent
        if file.is_dir() or not os.access(place, os.W_OK):
            return (
                f"{file} cannot be written; allowed is a file in a folder that exists and may be written to"
            )
    return ""


def write_report(report: LiveReport, page: Path) -> tuple[Path, Path]:
    """Write the page, and the JSON beside it; returns both paths. Raises `OSError`."""
    document = page.with_suffix(".json")
    page.write_text(as_markdown(report), encoding="utf-8")
    document.write_text(as_json(report) + "\n", encoding="utf-8")
    return page, document


def _head(report: LiveReport) -> Iterator[str]:
    lines = [line for proof in report.proofs for line in proof.lines]
    counted = [f"{sum(line.verdict == verdict for line in lines)} {verdict}" for verdict in VERDICTS]
    yield "# Models, asked live"
    yield ""
    yield f"agentic-trading {report.version}, {report.checked_on} (UTC), address: {report.address}."
    yield f"{', '.join(counted)}. By the price book {short_id(report.price_book)} it cost {_usd(report.cost_nusd)} USD"
    yield f"of at most {_usd(report.max_nusd)}; whether the provider billed the same, its console says."


def _of_model(proof: LiveCheckProof) -> Iterator[str]:
    yield from ("", f"## {proof.model}", "")
    yield from _table(["about", "the table tells", "seen", "verdict", "USD"])
    for line in proof.lines:
        yield _row([line.about, line.told, line.seen, line.verdict, _usd(line.cost_nusd)])
    if proof.stopped:
        yield from ("", "The rest was not asked, as the first request was not answered.")


def _table(columns: Sequence[str]) -> Iterator[str]:
    yield _row(columns)
    yield _row(["---"] * len(columns))


def _row(cells: Sequence[str]) -> str:
    """Return a row; what a server said is text in it, and can end neither the cell nor the row."""
    plain = (" ".join(cell.replace("|", "\\|").replace("`", "'").split()) for cell in cells)
    return f"| {' | '.join(plain)} |"


def _usd(nusd: int) -> str:
    return f"{nusd // NANO}.{nusd % NANO:09d}"
