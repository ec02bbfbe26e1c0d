"""DBOS on SQLite: a workflow of two steps, the call and the reply, begun under the name of its call.

Run: python -m benchmarks.peers.dbos.peer kill FILE PORT NAME POINT, which prints what its steps recorded as a line of JSON
unless it is killed; or speed FILE COUNT AT_ONCE, which prints seconds of CPU and of wall.
"""

import json
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS, DBOSConfig, SetWorkflowID

from benchmarks.peers.billed import TOKENS, die_at, post

ANSWER = {"text": '{"action":"wait","size":0}', "tokens": TOKENS}


class Killed:
    """Where this process is to die, and where the provider is; without a port the answer is there at once."""

    port = 0
    point = ""


@DBOS.step()
def call(name: str) -> dict[str, object]:
    """Ask the provider; what it used is recorded with its answer."""
    if not Killed.port:
        return ANSWER
    die_at(Killed.point, "noted")
    answer = post(Killed.port, "/call", name)
    die_at(Killed.point, "answered")
    return {"text": answer["text"], "tokens": int(answer["tokens"])}


@DBOS.step()
def reply(name: str, answer: dict[str, object]) -> None:
    """Send the answer to who asked."""
    if Killed.port and answer:
        post(Killed.port, "/reply", name)
    die_at(Killed.point, "replied")


@DBOS.workflow()
def decide(name: str) -> None:
    """Make the call and send the answer."""
    die_at(Killed.point, "taken")
    answer = call(name)
    die_at(Killed.point, "recorded")
    reply(name, answer)


def launch(file: str) -> None:
    """Start, and recover what an earlier process left."""
    config: DBOSConfig = {
        "name": "kill-matrix",
        "system_database_url": f"sqlite:///{file}",
        "log_level": "ERROR",
    }
    DBOS(config=config)
    DBOS.launch()


def kill(file: str, port: str, name: str, point: str) -> None:
    """Begin the workflow, or find it, and wait for its end."""
    Killed.port, Killed.point = int(port), point
    launch(file)
    with SetWorkflowID(name):
        DBOS.start_workflow(decide, name).get_result()
    outputs = [step["output"] for step in DBOS.list_workflow_steps(name)]
    print(json.dumps([output for output in outputs if output]), flush=True)
    DBOS.destroy()


def speed(file: str, count: str, at_once: str) -> None:
    """Run workflows whose provider answers at once."""
    launch(file)
    with ThreadPoolExecutor(int(at_once)) as pool:
        for names in (range(20), range(20, 20 + int(count))):  # the first ones warm up
            cpu, wall = time.process_time(), time.perf_counter()
            list(pool.map(decide, map(str, names)))
            took = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps(took), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    {"kill": kill, "speed": speed}[sys.argv[1]](*sys.argv[2:])
