"""Slips with one reading, several texts of each kind and what they mean; beside them texts that have none or several."""

import json
from collections.abc import Mapping
from typing import Any

TICKET: dict[str, Any] = {
    "symbol": "BTCUSDT",
    "side": "BUY",
    "qty": 0.25,
    "reduce_only": False,
    "stop": None,
    "note": "it's #1, see desk // book",
    "tags": ["trend", "v2, new"],
}

_STRICT = json.dumps(TICKET)
_INDENTED = json.dumps(TICKET, indent=2)


def _with(old: str, new: str, text: str = _STRICT) -> str:
    assert old in text, old
    return text.replace(old, new)


def _quoted(left: str, right: str, text: str = _STRICT) -> str:
    """Put every string into other quotes."""
    parts = text.split('"')
    return "".join(part + (left if i % 2 == 0 else right) for i, part in enumerate(parts[:-1])) + parts[-1]


_BARE = ", ".join(f"{key}: {json.dumps(value)}" for key, value in TICKET.items())
_PYTHON = _with("false", "False", _with("null", "None"))
_APOSTROPHE = _with("it's", "it\\'s")

THINKING: Mapping[str, tuple[str, str]] = {
    "DeepSeek, Qwen": ("<think>", "</think>"),
    "Gemini": ("<thought>", "</thought>"),
    "Mistral": ("[THINK]", "[/THINK]"),
    "Seed": ("<seed:think>", "</seed:think>"),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    "gpt-oss without tokens": ("analysis", "assistantfinal"),
}
"""The marks around the thinking of a model. A chat template may have written the first one already."""

_DRAFT = f"My first idea was {json.dumps({**TICKET, 'side': 'SELL', 'qty': 2})}, but funding turned."

SLIPS: Mapping[str, tuple[str, ...]] = {
    "none": (_STRICT, _INDENTED, f"\n\t {_STRICT} \n", json.dumps(TICKET, separators=(",", ":"))),
    "fence": (
        f"```json\n{_STRICT}\n```",
        f"```\n{_INDENTED}\n```",
        f"```JSON\n{_STRICT}```\n",
        f"~~~json\n{_STRICT}\n~~~",
        f"```json\n{_STRICT}",
    ),
    "prose around": (
        f"Here is the order:\n{_STRICT}",
        f"{_STRICT}\n\nLet me know if the size should change.",
        f"Sure! The answer is:\n\n```json\n{_INDENTED}\n```\n\nIt keeps the risk small.",
        f"As said in [1], the trend is up.\n{_STRICT}",
        f"<answer>{_STRICT}</answer>",
    ),
    "trailing comma": (
        _STRICT[:-1] + ",}",
        _with('new"]', 'new",]'),
        _with('new"]', 'new" , ]')[:-1] + "\n,\n}",
        _INDENTED[:-2] + ",\n}",
    ),
    "single quotes": (
        _quoted("'", "'", _APOSTROPHE),
        _with('"side": "BUY"', "'side': 'BUY'"),
        _with('"trend"', "'trend'"),
        str({**TICKET, "note": "see desk // book"}),
    ),
    "smart quotes": (
        _quoted("\u201c", "\u201d"),
        _with('"side": "BUY"', "\u201cside\u201d: \u201cBUY\u201d"),
        _with('"BTCUSDT"', "\u2018BTCUSDT\u2019"),
        _quoted("\u201e", "\u201c"),
    ),
    "back quotes": (_quoted("`", "`"), _with('"BUY"', "`BUY`"), _with('"side"', "`side`")),
    "comments": (
        _with('"qty"', '// in coins\n"qty"'),
        _with('"qty"', '/* in coins */ "qty"'),
        _with('"qty"', '# in coins\n"qty"'),
        _STRICT + " // done",
        "// the order\n" + _INDENTED,
        _INDENTED.replace("0.25,", "0.25, // a quarter"),
    ),
    "bare keys": ("{" + _BARE + "}", _with('"side":', "side:"), _with('"reduce_only"', "reduce_only")),
    "Python literals": (_PYTHON, _with("false", "False"), _with("null", "None")),
    "literals in capitals": (_with("false", "FALSE"), _with("false", "FALSE", _with("null", "None"))),
    "a sign behind the end": (
        _STRICT + ",",
        _STRICT + "}",
        _INDENTED + "\n}\n",
        f"```json\n{_STRICT}}}\n```",
    ),
    "raw control characters": (
        _with("it's #1", "it's\t#1"),
        _with("see desk", "see\ndesk"),
        _with("see desk", "see\r\ndesk"),
    ),
    "escaped apostrophe": (_APOSTROPHE, _with("it's", "it\\'s", _INDENTED)),
    "odd white space": (
        "\ufeff" + _STRICT,
        _with('"qty": ', '"qty":\u00a0'),
        _with(", ", ",\u2028", json.dumps({**TICKET, "note": "", "tags": []})),
    ),
    "missing comma": (
        _INDENTED.replace('"BUY",', '"BUY"'),
        _INDENTED.replace("false,", "false"),
        _with('"trend", "v2', '"trend" "v2'),
        _INDENTED.replace('"trend",', '"trend"'),
    ),
    "repeated key, equal value": (_STRICT[:-1] + ', "side": "BUY"}', _with('"qty"', '"qty": 0.25, "qty"')),
    "thinking in front": (
        *(f"{opening}{_DRAFT}{closing}\n{_STRICT}" for opening, closing in THINKING.values()),
        *(f"{_DRAFT}{closing}```json\n{_INDENTED}\n```" for _, closing in THINKING.values()),
        f"<think>{_DRAFT}</think>{_with('see desk', 'see </think>')}",
    ),
    "several at once": (
        f"```json\n{{{_BARE},}}\n```",
        f"Here it is:\n{_PYTHON[:-1]},}}",
        _quoted("'", "'", _with("false", "False", _APOSTROPHE))[:-1] + ",}",
        "{" + _BARE.replace("qty", "/* coins */ qty") + ",}",
    ),
}
"""By kind. What a text means is `TICKET`, but for what `meant` says."""

_MEANT = {
    SLIPS["single quotes"][3]: {**TICKET, "note": "see desk // book"},
    SLIPS["raw control characters"][0]: {**TICKET, "note": "it's\t#1, see desk // book"},
    SLIPS["raw control characters"][1]: {**TICKET, "note": "it's #1, see\ndesk // book"},
    SLIPS["raw control characters"][2]: {**TICKET, "note": "it's #1, see\r\ndesk // book"},
    SLIPS["odd white space"][2]: {**TICKET, "note": "", "tags": []},
    SLIPS["thinking in front"][-1]: {**TICKET, "note": "it's #1, see </think> // book"},
}


def meant(text: str) -> dict[str, Any]:
    """Return what one of `SLIPS` means."""
    return _MEANT.get(text, TICKET)


def _qty(*spelled: str) -> tuple[str, ...]:
    return tuple(_with('"qty": 0.25', f'"qty": {one}') for one in spelled)


GUESSES: Mapping[str, tuple[str, ...]] = {
    "a number that JSON has not": _qty(
        "1/3", "1-2", "01", "1_0", "+5", ".5", "..25", "5.", "0x1", "1.5e", "1,5", "-"
    ),
    "a unit": _qty("2%", "$2", "2 USD", "~2"),
    "a number spelled for people": _qty('"0,5"', '"2%"', '"$2"', '" 2 "', '"two"', '"1/3"'),
    "another type": (*_qty("true", "[1,2]", '{"value":1}'), _with("false", '"no"'), _with("false", "0")),
    "no number": tuple(_with("null", one) for one in ("NaN", "Infinity", "1e999", "undefined", "N/A")),
    "a key twice": (_with('"qty": 0.25', '"qty": 0.25, "qty": 2.5'), _STRICT[:-1] + ', "side": "SELL"}'),
    "something left out": (
        _with('"v2, new"]', "...]"),
        _with('"v2, new"]', "\u2026]"),
        _with("null", ""),
        _with('"side": "BUY", ', ""),
        _with('"side": "BUY", ', '"side": , '),
        _with('"side": "BUY"', '"side"'),
        _with(", ", ",, ", json.dumps({**TICKET, "note": "", "tags": []})),
    ),
    "bare words": (
        _with('"BUY"', "BUY"),
        _with("false", "no"),
        _with('"trend"', "trend"),
        _with("false", "FALSEX"),
        _with("false", "fALSE"),
    ),
    "quotes within quotes": (
        _with("it's #1, see", 'a "sure" thing, see'),
        _with("it's #1, see desk // book", 'risk on", "side": "SELL'),
        _with('"BUY"', '"BUY" or "SELL"'),
        _with('"BUY"', '"B" + "UY"'),
    ),
    "brackets that do not match": (
        _with("]}", "}}"),
        _with("]}", "]]}"),
        _with("]}", "}"),
        _STRICT + "}}",
        _STRICT + "}{",
        _STRICT + "]",
    ),
    "members after the end": (_STRICT + ', "side": "SELL"}', _STRICT[:-1] + '}, "qty": 2}', _STRICT + ",,"),
    "cut": (
        f'{{"plan": {_STRICT}, "veto": tr',
        f'[{_STRICT}, {{"symbol": "ETH',
        f"Here it is: {_STRICT[:-1]}",
        f"```json\n{_STRICT[:-2]}\n```",
        _STRICT + " /* as long as",
    ),
    "a draft in thinking": (
        *(f"{opening}{_DRAFT}{closing}I stay out." for opening, closing in THINKING.values()),
        *(f"{_DRAFT}{closing}" for _, closing in THINKING.values()),
        *(f"{opening}{_DRAFT}" for opening, _ in THINKING.values()),
    ),
    "no answer": (
        "I cannot help with placing orders.",
        "I would BUY 0.25 BTCUSDT.",
        "null",
        "[]",
        "{}",
        '"BUY"',
    ),
}
"""By kind. Whatever object is taken from one of these, it is a guess."""
