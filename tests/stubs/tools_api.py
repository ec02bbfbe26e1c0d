"""The stub of the Messages API as a model that calls the answer tool, in the right way and in all others."""

from typing import Any

from tests.stubs.messages_api import GOOD, PLAYS, Reply, answer, changed, main, of_context

EXACT = '{"action": "buy", "size": 1.50,\n "size": 1.50}'
"""An input of which no parsed object can tell how it was written."""
OTHER = '{"action":"sell","size":9}'


def call(raw: str = EXACT, name: str = "answer") -> dict[str, Any]:
    """Return the block of a call whose input is the JSON text `raw`."""
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": {"@raw": raw}}


def says(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def calling(
    body: dict[str, Any], *blocks: dict[str, Any], stop: str = "tool_use", **usage: Any
) -> Reply | None:
    """Return an answer of `blocks`; nothing where no tool was offered."""
    if "tools" not in body:
        return None
    return changed(body, content=list(blocks), stop_reason=stop, usage={"output_tokens": 40, **usage})


def of_number(body: dict[str, Any]) -> Reply | None:
    """Answer as the other stub does: an answer that is an object by a call, where the tool is there."""
    reply = of_context(body)
    text = "" if reply is None else reply["content"][0]["text"]
    return calling(body, call(text)) if text.endswith("}") and "tools" in body else reply


def thoughtful(body: dict[str, Any]) -> Reply | None:
    thought = {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"}
    return calling(body, thought, call(), output_tokens_details={"thinking_tokens": 30})


PLAYS |= {
    "": of_number,
    "call": lambda body: calling(body, call()),
    "thoughtful_call": thoughtful,
    "call_beside": lambda body: calling(body, says(OTHER), call(), says("done")),
    "two_calls": lambda body: calling(body, call(), call(OTHER)),
    "other_call": lambda body: calling(body, call(OTHER, name="buy")),
    "lost_call": lambda body: calling(body, says(OTHER)),
    "talk": lambda body: answer(body, GOOD),
    "cut_call": lambda body: calling(
        body, call('{"action": "buy"}'), stop="max_tokens", output_tokens=body["max_tokens"]
    ),
    "overfull_call": lambda body: calling(
        body, call('{"action": "buy"}'), stop="model_context_window_exceeded"
    ),
    "refused_call": lambda body: calling(body, says("no"), call(), stop="refusal"),
    "call_twice_said": lambda body: calling(
        body, {"type": "tool_use", "id": "1", "name": "answer", "input": {"@raw": '{}, "input": {"size": 1}'}}
    ),
}

if __name__ == "__main__":
    main()
