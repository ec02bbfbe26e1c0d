"""What the peers of `fleet.py` do in a call, whose provider answers at once; it needs nothing but the standard library."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

ANSWER = '{"action":"wait","size":0}'
TOKENS = 120
NUSD_PER_TOKEN = 1000


def ask_all(ask: Callable[[int], str], numbers: range, at_once: int) -> tuple[list[float], int]:
    """Ask for each number, so many at once; return what each took in milliseconds, and how many answers were wrong."""

    def timed(number: int) -> tuple[float, bool]:
        begin = time.perf_counter()
        is_right = ask(number) == ANSWER
        return 1000 * (time.perf_counter() - begin), is_right

    with ThreadPoolExecutor(at_once) as pool:
        took = list(pool.map(timed, numbers))
    return [each for each, _ in took], sum(not is_right for _, is_right in took)
