"""Write what is asked, answered and decided at one moment: `python -m tests.golden.analysis.make_golden`.

A pin, not an oracle: it shows what a change does to the question, which no replay of older answers survives.
"""

import json
from pathlib import Path
from typing import Any

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.desk.analysis.assessment import Demands, assess
from agentic_trading.desk.analysis.judgement import CMT_ASSESSMENT_SCHEMA, Judgement
from agentic_trading.desk.analysis.plan import plan_prices
from agentic_trading.desk.analysis.rules import cmt_assessment_rule
from tests.desk.analysis.build import market, provenance, question, record

FILE = Path(__file__).parent / "cmt-question.json"


def golden() -> dict[str, Any]:
    """Return the question after 120 closed hours of the sample, the rule's answer and what follows from it."""
    asked = question(market(120), record=record())
    text = cmt_assessment_rule(asked)
    last_close = asked.context["last_close"]
    judged = Judgement.model_validate_json(text)
    prices = plan_prices(asked, judged)
    outcome = assess(judged, provenance(last_close), Demands(), prices=prices)
    return {
        "prompt_version": asked.prompt_version,
        "published_sha256": sha256_hex(canonical_bytes(dict(CMT_ASSESSMENT_SCHEMA))),
        "asked_sha256": sha256_hex(asked.output_schema_json),
        "context": asked.context,
        "evidence": {item.source: item.content for item in asked.retrieved_evidence},
        "answer": json.loads(text),
        "decided": outcome.model_dump(mode="json", include={"total", "verdict", "stand_aside", "plan"}),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(golden(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
