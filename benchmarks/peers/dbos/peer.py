"""DBOS on SQLite: a workflow of two steps, the call and the reply, begun under the name of its call.

Run: python -m benchmarks.peers.dbos.peer FILE PORT NAME POINT, which prints what its steps recorded as a line of JSON
unless it is killed.
"""

import json
import logging
import sys

from dbos import DBOS, DBOSConfig, SetWorkflowID

from benchmarks.peers.billed import die_at, post


class Killed:
    """Where this process is to die, and where the provider is."""

    port = 0
    point = ""


@DBOS.step()
def call(name: str) -> dict[str, object]:
    """Ask the provider; what it used is recorded with its answer."""
    die_at(Killed.point, "noted")
    answer = post(Killed.port, "/call", name)
    die_at(Killed.point, "answered")
    return {"text": answer["text"], "tokens": int(answer["tokens"])}


@DBOS.step()
def reply(name: str, answer: dict[str, object]) -> None:
    """Send the answer to who asked."""
    if answer:
        post(Killed.port, "/reply", name)
    die_at(Killed.point, "replied")


@DBOS.workflow()
def decide(name: str) -> None:
    """Make the call and send the answer."""
    die_at(Killed.point, "taken")
    answer = call(name)
    die_at(Killed.point, "recorded")
    reply(name, answer)


def launch(url: str) -> None:
    """Start on the database at `url`, and recover what an earlier process left."""
    config: DBOSConfig = {
        "name": "kill-matrix",
        "system_database_url": url,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()


def kill(file: str, port: str, name: str, point: str) -> None:
    """Begin the workflow, or find it, and wait for its end."""
    Killed.port, Killed.point = int(port), point
    launch(f"sqlite:///{file}")
    with SetWorkflowID(name):
        DBOS.start_workflow(decide, name).get_result()
    outputs = [step["output"] for step in DBOS.list_workflow_steps(name)]
    print(json.dumps([output for output in outputs if output]), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    kill(*sys.argv[1:])
