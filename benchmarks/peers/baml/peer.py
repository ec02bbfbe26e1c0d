"""BAML: its schema-aligned parser, with the order in its own language."""

from pathlib import Path
from types import ModuleType

from baml_py import BamlRuntime
from pydantic import BaseModel, ConfigDict

from benchmarks.peers.reader import Way, answer_readings


class Read(BaseModel):
    """What a class of BAML is handed out as."""

    model_config = ConfigDict(extra="allow")


def _classes() -> ModuleType:
    module = ModuleType("order")
    for name in ("Leg", "Typical", "Full", "Ticket"):
        setattr(module, name, type(name, (Read,), {}))
    return module


def parser() -> Way:
    """Return a reader that always gives all properties; those that are null are left out where they are optional."""
    source = (Path(__file__).parent / "order.baml").read_text(encoding="utf-8")
    runtime, classes = BamlRuntime.from_files("order", {"order.baml": source}, {}), _classes()
    context = runtime.create_context_manager()

    def way(schema: str):
        def read(text: str) -> dict[str, object]:
            of, no_partials = (f"Read{schema.title()}", text, classes, classes, classes), False
            value = runtime.parse_llm_response(*of, no_partials, context, None, None, {})
            return value.model_dump(exclude_none=schema != "ticket")

        return read

    return way


if __name__ == "__main__":
    answer_readings({"parse": parser()})
