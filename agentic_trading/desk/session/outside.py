"""The outside of an agent: the files, networks, processes, clocks and random sources that its code uses."""

import gc
import sys
import sysconfig
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final, Literal

import agentic_trading

Outside = Literal["files", "network", "processes", "clocks", "random"]

KINDS: Final[tuple[Outside, ...]] = ("files", "network", "processes", "clocks", "random")

NOT_SEEN: Final = (
    "C code that draws or reads by itself, such as numpy.random",
    "environment variables",
    "facts about a file that is not opened, such as its size",
    "caches of functions, and state in objects of other classes",
    "bars that the package has in memory",
    "code that these bars do not reach",
)
"""The limits of the watch, for the report."""

_EVENTS: Final[Mapping[str, Outside]] = {
    "open": "files",
    "os.listdir": "files",
    "os.scandir": "files",
    "sqlite3.connect": "files",
    "socket.__new__": "network",
    "socket.connect": "network",
    "socket.getaddrinfo": "network",
    "socket.gethostbyname": "network",
    "subprocess.Popen": "processes",
    "os.system": "processes",
    "os.fork": "processes",
    "os.forkpty": "processes",
    "os.posix_spawn": "processes",
}
"""The audit events of the interpreter (PEP 578) for files, networks and processes."""

_CLOCKS: Final = frozenset({
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
    "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime", "clock_gettime",
    "clock_gettime_ns",
})  # fmt: skip
_DATES: Final = frozenset({"now", "utcnow", "today"})
_DRAWS: Final = frozenset({"random", "getrandbits"})
_UUIDS: Final = frozenset({"uuid1", "uuid4", "uuid6", "uuid7", "generate_time_safe", "UuidCreate"})
_ENTROPY: Final = frozenset({"urandom", "getrandom"})
_WATCHED: Final = _CLOCKS | _DATES | _DRAWS | _UUIDS | _ENTROPY | {"seed"}

_Whose = Literal["own", "library", "edge", "other"]

_LIBRARY: Final = str(Path(agentic_trading.__file__).parent)
_STDLIB: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED: Final = ("site-packages", "dist-packages")
_ON_BEHALF: Final = (f"{_LIBRARY}/desk/agents/", f"{_LIBRARY}/desk/decisions.py", f"{_LIBRARY}/client/")
"""The code that an agent enters through its desk."""
_EDGES: Final = frozenset(
    f"{_LIBRARY}/desk/{name}.py" for name in ("agents/runner", "session/agents", "session/agent_check")
)
"""The code that calls an agent."""
_EDGES_BELOW: Final = (
    "<frozen importlib",
    "<frozen zipimport",
    *(f"{folder}/{name}" for folder in _STDLIB for name in ("logging/", "linecache.py")),
)

_PLAIN: Final = (
    bool, int, float, complex, str, bytes, bytearray, list, dict, set, frozenset, tuple, deque, Decimal,
    date, time, timedelta, type(None),
)  # fmt: skip
"""The types whose text shows their whole value."""


@dataclass(frozen=True, slots=True, order=True)
class Access:
    """One use of the outside by the code of an agent.

    Attributes:
        kind: The kind of the outside.
        what: The function or the audit event, with its path or address.
        place: The file and the line of the agent's code.

    """

    kind: Outside
    what: str
    place: str


class OwnCode:
    """The code of an agent: its module, and the modules next to it that are not installed.

    Args:
        file: The file of the agent's module.
        module: The name of the agent's module.

    """

    def __init__(self, file: Path, module: str) -> None:
        self._file = str(file)
        depth = module.count(".") + (file.name == "__init__.py")
        # The top folder of a package, and the folder of a single module.
        self._folder = str(file.parents[max(0, depth - 1)])
        self._is_installed = _is_installed(self._file)
        self._is_package = depth > 0
        self._whose: dict[str, _Whose] = {}

    def has(self, file: str) -> bool:
        """Return whether a file of source code is the agent's."""
        if file == self._file:
            return True
        if self._is_installed:
            return self._is_package and _is_below(file, self._folder)
        return _is_below(file, self._folder) and not _is_installed(file)

    def caller(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the agent's code, or None if the work is that of others.

        A desk and its gateway work on behalf of an agent. The import system reads modules, and `logging`
        reads a clock for each line. `linecache` reads source code for warnings and errors. These are not uses of the agent.
        """
        entered = ""
        while frame is not None:
            whose = self._of(frame.f_code.co_filename)
            if whose == "own":
                return None if entered.startswith(_ON_BEHALF) else frame
            # Because below the event loop is whoever started the session, perhaps code of the same folder.
            if whose == "edge" or frame.f_code.co_name == "_run_once":
                return None
            if whose == "library":
                entered = frame.f_code.co_filename
            frame = frame.f_back
        return None

    def modules(self) -> Iterator[ModuleType]:
        """Yield the imported modules of the agent's code, by name."""
        for _, module in sorted(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and self._of(file) == "own":
                yield module

    def _of(self, file: str) -> _Whose:
        whose = self._whose.get(file)
        if whose is None:
            whose = self._whose[file] = self._read(file)
        return whose

    def _read(self, file: str) -> _Whose:
        if file in _EDGES or file.startswith(_EDGES_BELOW):
            return "edge"
        if _is_below(file, _LIBRARY):
            return "library"
        return "own" if self.has(file) else "other"


@dataclass(slots=True)
class OutsideWatch:
    """Counts the uses of the outside by the code of an agent while `watching`.

    Files, networks and processes are audit events, in every thread. Clocks and random sources have no audit
    events, so the calls of their C functions are profiled. Draws of a `random.Random` with a seed repeat, and
    are not counted.
    """

    code: OwnCode
    seen: Counter[Access] = field(default_factory=Counter)
    _collecting: bool = False

    def of(self, kind: Outside) -> list[tuple[Access, int]]:
        """Return the uses of one kind with their counts, by place."""
        return sorted((access, count) for access, count in self.seen.items() if access.kind == kind)

    @contextmanager
    def watching(self) -> Generator[None]:
        """Watch this process until the block ends."""
        _HOOK.start(self)
        # The first at the start of a collection and the last at its end, so that all that it runs is between.
        gc.callbacks.insert(0, self._before_collection)
        gc.callbacks.append(self._after_collection)
        before = sys.getprofile()
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
            gc.callbacks.remove(self._before_collection)
            gc.callbacks.remove(self._after_collection)
            _HOOK.watch = None

    def _before_collection(self, phase: str, _info: Mapping[str, int]) -> None:
        # Finalizers and callbacks of a collection run wherever memory is asked for, also in the agent's code.
        self._collecting = self._collecting or phase == "start"

    def _after_collection(self, phase: str, _info: Mapping[str, int]) -> None:
        self._collecting = self._collecting and phase != "stop"

    def audit(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """Count an audit event."""
        caller = None if self._collecting else self.code.caller(frame)
        if caller is not None:
            what = " ".join((event, *(str(each) for each in args[:1] if isinstance(each, str | Path))))
            self._add(_EVENTS[event], what, caller)

    def _profile(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or self._collecting or getattr(function, "__name__", "") not in _WATCHED:
            return
        found = _source(function, frame)
        if found is not None and (caller := self.code.caller(frame)) is not None:
            self._add(*found, caller)

    def _add(self, kind: Outside, what: str, caller: FrameType) -> None:
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        self.seen[Access(kind, what, place)] += 1


def state_of(code: OwnCode) -> dict[str, str]:
    """Return the text of each plain value that the modules and the classes of an agent hold, by name."""
    found: dict[str, str] = {}
    for module in code.modules():
        holders: list[tuple[str, Mapping[str, Any]]] = [(module.__name__, vars(module))]
        holders += [
            (f"{module.__name__}.{name}", vars(each))
            for name, each in vars(module).items()
            if isinstance(each, type) and each.__module__ == module.__name__
        ]
        for holder, values in holders:
            for name, value in list(values.items()):
                if not name.startswith("__") and isinstance(value, _PLAIN):
                    found[f"{holder}.{name}"] = _text(value)
    return found


def _text(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - an object of the user in a list may raise anything
        return type(value).__name__


def _source(function: Any, frame: FrameType) -> tuple[Outside, str] | None:
    """Return the kind and the name of a clock or a random source, or None for another C function."""
    name, of = function.__name__, getattr(function, "__self__", None)
    module = function.__module__ or ""
    if name in _CLOCKS and module == "time":
        return "clocks", f"time.{name}"
    if name in _DATES and isinstance(of, type) and issubclass(of, date):
        return "clocks", f"{of.__name__}.{name}"
    if name in _ENTROPY and module in {"posix", "nt"}:
        return "random", f"os.{name}"
    if name in _UUIDS and module.startswith(("_uuid", "uuid")):
        return "random", f"uuid.{name}"
    return _draw(name, of, frame)


def _draw(name: str, of: Any, frame: FrameType) -> tuple[Outside, str] | None:
    """Return the name of a draw from `random`, or None if it repeats, as from a generator with a seed."""
    shared = getattr(getattr(sys.modules.get("random"), "random", None), "__self__", None)
    if of is None or shared is None:
        return None
    if name in _DRAWS and of is shared:
        return "random", "random"
    # `Random.__init__` gives its seed to `Random.seed`, which is Python code. None is drawn from the system.
    is_drawn = name == "seed" and frame.f_code.co_name == "seed" and frame.f_locals.get("a", "") is None
    return ("random", "random.Random without a seed") if is_drawn and isinstance(of, type(shared)) else None


def _is_installed(file: str) -> bool:
    return any(part in Path(file).parts for part in _INSTALLED) or any(
        _is_below(file, folder) for folder in _STDLIB
    )


def _is_below(file: str, folder: str | None) -> bool:
    return bool(folder) and file.startswith(f"{folder}/")


class _AuditHook:
    """One audit hook per process, because audit hooks cannot be removed."""

    def __init__(self) -> None:
        self.watch: OutsideWatch | None = None
        self._is_set = False

    def start(self, watch: OutsideWatch) -> None:
        self.watch = watch
        if not self._is_set:
            self._is_set = True
            sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.watch is not None and event in _EVENTS:
            self.watch.audit(event, args, sys._getframe(1))  # noqa: SLF001 - the only way to the caller


_HOOK = _AuditHook()
