"""Own panels: their forms, the days on which events count, and the errors of each file."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from agentic_trading.desk.market.errors import (
    BarFormatError,
    EmptyUniverseError,
    FeedUnavailableError,
    MarketError,
    PanelFolderError,
    PanelValueError,
)
from agentic_trading.desk.planning.evaluator import PanelEvaluator
from agentic_trading.desk.planning.panel_files import OwnPanel, load_own_panel
from agentic_trading.desk.planning.sandbox import Sandbox
from tests.desk.planning.own_panels import (
    SYMBOLS,
    TERMS,
    events_csv,
    long_csv,
    weekdays,
    wide_csv,
    write_panel,
)

SMALL = "date,symbol,close\n2021-01-04,A,10\n2021-01-04,B,20\n2021-01-06,A,11\n2021-01-06,B,21\n"
ONE = 'name = "small"\nprices = "prices.csv"\nevents = "events.csv"\n[catalysts]\nsurprise = "a text"\n'


def digest(own: OwnPanel) -> str:
    return PanelEvaluator(
        own.panel, Sandbox(own.panel, catalysts=own.catalysts), descriptions=own.descriptions
    ).data_sha256


def small(folder: Path, events: str = "", *, prices: str = SMALL, terms: str = ONE) -> OwnPanel:
    for name, text in {"prices.csv": prices, "events.csv": events, "panel.toml": terms}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return load_own_panel(folder)


def test_equal_prices_have_equal_digests_in_each_form(tmp_path: Path) -> None:
    forms = {
        "long.csv": long_csv().encode(),
        "wide.csv": wide_csv().encode(),
        "semicolons.csv": long_csv().replace(",", ";").encode("utf-8-sig"),
        "named.csv": long_csv().replace("date,symbol,close", "Timestamp,Ticker,Close").encode(),
        "packed.csv.gz": gzip.compress(wide_csv().encode()),
    }
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
    pl.read_csv(tmp_path / "long.csv", try_parse_dates=True).write_parquet(tmp_path / "long.parquet")
    pl.read_csv(tmp_path / "wide.csv", try_parse_dates=True).write_parquet(tmp_path / "wide.parquet")

    digests = {digest(load_own_panel(path)) for path in sorted(tmp_path.iterdir())}

    assert len(digests) == 1
    assert load_own_panel(tmp_path / "packed.csv.gz").panel.name == "packed"


def test_kept_files_have_same_digest_and_text(tmp_path: Path) -> None:
    own = load_own_panel(write_panel(tmp_path / "nordic"))

    (tmp_path / "kept").mkdir()
    for name, text in own.files().items():
        (tmp_path / "kept" / name).write_text(text, encoding="utf-8")
    kept = load_own_panel(tmp_path / "kept")

    assert (digest(kept), kept.files(), kept.panel.name) == (digest(own), own.files(), "nordic")
    assert kept.descriptions == own.descriptions


def test_changed_event_has_other_digest(tmp_path: Path) -> None:
    own = load_own_panel(write_panel(tmp_path / "one"))
    lines = events_csv().splitlines()
    lines[1] = lines[1].replace(",S00,", ",S01,")
    other = load_own_panel(write_panel(tmp_path / "other", events="\n".join(lines)))

    assert digest(own) != digest(other)


def test_gaps_and_optional_columns(tmp_path: Path) -> None:
    text = (
        "date,symbol,close,open,volume\n# a comment\n2021-01-05,A,11,10.5,\n2021-01-04,A,10,9,3\n"
        "2021-01-04,B,20,19,4\n2021-01-05,B,,,\n2021-01-06,B,NaN,,7\n2021-01-07,B,21,21,5\n"
    )
    path = tmp_path / "gaps.csv"
    path.write_text(text, encoding="utf-8")

    panel = load_own_panel(path).panel

    assert [str(day) for day in panel.days] == ["2021-01-04", "2021-01-05", "2021-01-07"]
    assert np.isnan(panel.close).tolist() == [[False, False], [False, True], [True, False]]
    assert panel.open[:2, 0].tolist() == [9, 10.5]
    assert panel.high[:2, 0].tolist() == [10, 11]  # the close, because the file has no high
    assert panel.volume.tolist() == [[3, 4], [0, 0], [0, 5]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["2021-01-04,A,0.5"], [[0.5, 0], [0, 0]]),
        (["2021-01-05,A,0.5"], [[0, 0], [0.5, 0]]),  # a day without prices: from the next close on
        (["2021-01-03,A,0.5", "2021-01-07,B,0.5"], [[0, 0], [0, 0]]),
        (["2021-01-06,B,-0.5", "2021-01-05,B,0.5"], [[0, 0], [0, -0.5]]),  # the later one counts
        (["2021-01-06,B,", "2021-01-05,B,0.5"], [[0, 0], [0, 0.5]]),
    ],
)
def test_event_counts_from_day_it_was_known(
    tmp_path: Path, rows: Sequence[str], expected: list[list[float]]
) -> None:
    own = small(tmp_path, "\n".join(["known,symbol,surprise", *rows]))

    assert own.catalysts["surprise"].tolist() == expected


def test_later_events_change_no_earlier_bar(tmp_path: Path) -> None:
    full = load_own_panel(write_panel(tmp_path / "full"))
    for cut in (70, 150, 231):
        last = weekdays()[cut - 1].isoformat()
        header, *rows = events_csv().splitlines()
        before = "\n".join([header, *(row for row in rows if row[:10] <= last)])
        part = load_own_panel(write_panel(tmp_path / str(cut), events=before))
        for name, frame in full.catalysts.items():
            assert part.catalysts[name][:cut].tolist() == frame[:cut].tolist()
            assert not part.catalysts[name][cut:].any()


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        (SMALL + "2021-01-07,A,-1\n", r"line 6, A on 2021-01-07: close is '-1'; allowed: a number above 0, or"),
        (SMALL + "2021-01-07,A,inf\n", r"line 6, A on 2021-01-07: close is 'inf'"),
        (SMALL + "2021-01-06,B,22\n", r"line 6, B on 2021-01-06: date is there twice; allowed: one row"),
        (SMALL + "06/01/2021,B,22\n", r"line 6, column 'date': '06/01/2021'; allowed: epoch"),
        (SMALL + "2021-01-07,,22\n", r"line 6, column 'symbol': ''; allowed: 1 to 40 characters"),
        (SMALL + "2021-01-07,A\n", r"line 6, column '\(row\)': '2 cells'; allowed: 3, as the header"),
        ("date,open,close\n2021-01-04,1,2\n", r"line 1, column 'symbol': 'not there'; allowed: the columns date"),
        ("day,symbol,close\n", r"line 1, column 'date': 'not there'; allowed: the columns date, symbol and close"),
        ("date,symbol,price\n", r"line 1, column 'close': 'not there'"),
        ("date,time,symbol,close\n", r"line 1, column 'date': 'there 2 times'"),
        ("date,A,A\n2021-01-04,1,2\n", r"line 1, column '\(header\)': 'a symbol twice'"),
        ("date,A,B\n2021-01-04,1,2\n2021-01-04,1,2\n", r"line 3, column 'date': '2021-01-04'; allowed: one row a day"),
        ("date,A,B\n2021-01-04,1,x\n", r"line 2, B on 2021-01-04: close is 'x'"),
        ('date,A,B\n2021-01-04,"1', r"prices.csv"),
        ("", r"line 1, column 'date': 'not there'"),
    ],
)  # fmt: skip
def test_wrong_price_is_named_with_line_and_symbol(tmp_path: Path, prices: str, message: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(prices, encoding="utf-8")

    with pytest.raises((PanelValueError, BarFormatError, EmptyUniverseError), match=message):
        load_own_panel(path)


def test_volume_and_open_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    for row, message in {
        "2021-01-04,A,1,-5,1": r"A on 2021-01-04: volume is '-5'; allowed: a number, 0 or more",
        "2021-01-04,A,1,5,": r"A on 2021-01-04: open is ''; allowed: a number above 0",
    }.items():
        path.write_text(f"date,symbol,close,volume,open\n{row}\n", encoding="utf-8")
        with pytest.raises(PanelValueError, match=message) as raised:
            load_own_panel(path)
        assert raised.value.line == 2


def test_other_bytes_and_missing_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "utf16.csv").write_bytes("date,A,B\n".encode("utf-16"))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    for name in ("utf16.csv", "broken.parquet", "missing.csv"):
        with pytest.raises(FeedUnavailableError, match=f"{name} cannot be read"):
            load_own_panel(tmp_path / name)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ("2021-01-04,C,1", r"line 2, C on 2021-01-04: symbol is 'C'; allowed: a symbol with prices: A, B"),
        ("2021-01-04,A,high", r"line 2, A on 2021-01-04: surprise is 'high'; allowed: a number, above 0 where"),
        ("2021-01-04,A,1e999", r"surprise is '1e999'"),
        ("2021-01-04T16:30,A,1", r"line 2, column 'known': '2021-01-04T16:30'; allowed: a date without a time"),
        ("2021-02-30,A,1", r"line 2, column 'known': '2021-02-30'"),
        ("2021-01-04,A,1\n2021-01-04,A,2", r"line 3, A on 2021-01-04: known is there twice"),
    ],
)  # fmt: skip
def test_wrong_event_is_named_with_line_and_symbol(tmp_path: Path, events: str, message: str) -> None:
    with pytest.raises(MarketError, match=message):
        small(tmp_path, f"known,symbol,surprise\n{events}\n")


def test_missing_column_of_events_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BarFormatError, match="column 'surprise': 'not there'; allowed: the columns known, symbol"
    ):
        small(tmp_path, "known,symbol,value\n")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("prices = ", r"panel.toml: text is .*; allowed: TOML"),
        ('prices = "prices.csv"\ncode = "mine:Family"\n', r"panel.toml: code is unknown; allowed: name, prices"),
        (ONE.replace('"small"', '"a name"'), r"name is 'a name'; allowed: 1 to 64 letters"),
        (ONE.replace("prices.csv", "../prices.csv"), r"prices is '../prices.csv'; allowed: the name of a file"),
        (ONE.replace("events.csv", "other.csv"), r"events is 'other.csv'; allowed: the name of a file"),
        (ONE.partition("[")[0], r"catalysts is empty; allowed: a line for each column of events"),
        (ONE.replace("surprise", "volume"), r"catalysts is 'volume'; allowed: 1 to 40 lower-case letters"),
        (ONE.replace("a text", ""), r"catalysts.surprise is ''; allowed: a description of 1 to 200"),
        ('name = "x"\nprices = "prices.csv"\ncatalysts = 1\n', r"catalysts is 1; allowed: a table of at most 16"),
    ],
)  # fmt: skip
def test_wrong_terms_are_named(tmp_path: Path, terms: str, message: str) -> None:
    with pytest.raises(PanelFolderError, match=message):
        small(tmp_path, "known,symbol,surprise\n", terms=terms)


def test_folder_without_terms_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        PanelFolderError, match=r"panel.toml is No such file.*; allowed: a folder with a file"
    ):
        load_own_panel(tmp_path)


def test_catalysts_are_offered_with_descriptions(tmp_path: Path) -> None:
    own = load_own_panel(write_panel(tmp_path / "nordic"))
    evaluator = PanelEvaluator(
        own.panel, Sandbox(own.panel, catalysts=own.catalysts), descriptions=own.descriptions
    )

    assert evaluator.offered.grids["momentum"]["catalyst_type"] == ("none", "surprise", "guidance")
    assert own.panel.symbols == SYMBOLS
    assert [*own.descriptions] == ["surprise", "guidance"]
    assert TERMS in own.files()["panel.toml"]
