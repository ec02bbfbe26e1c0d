"""The stub of the Messages API as a model that does what it is asked: it keeps to a schema, and answers a plain question."""

import json
from typing import Any

from tests.stubs.messages_api import PLAYS, Reply, answer, main


def obeyed(body: dict[str, Any]) -> Reply:
    """Return an object of the first allowed values where a schema is enforced, else a word."""
    form = body.get("output_config", {}).get("format")
    if form is None:
        return answer(body, "ready")
    return answer(
        body, json.dumps({name: one["enum"][0] for name, one in form["schema"]["properties"].items()})
    )


PLAYS[""] = obeyed

if __name__ == "__main__":
    main()
