"""Events as lines of JSON in, answers as lines of JSON out: a stream for any queue or pipe."""

from __future__ import annotations

import json
from typing import Any

from lapse.streaming.stream import Stream

FIELDS = ("id", "time", "values", "ask", "start", "static")


class Lines:
    """What becomes of the lines that a stream is given.

    An event is `{"id": "pump 3", "time": 12.5, "values": {"pressure": 2.1}}`; values may also be a list, and null is
    what was not observed. The first event of an id may bring `static` and `start`. A question is
    `{"id": "pump 3", "time": 20, "ask": true}`. An answer repeats id and time and has the columns of `predict`.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.count = 0  # lines so far
        self.failed = 0  # those of them that were answered with an error

    def answer(self, line: bytes) -> str:
        """The line that answers one line; a bad one is answered with its number and what is wrong with it.

        Args:
            line: a line of JSON in UTF-8.
        """
        self.count += 1
        try:
            found = self._answer(_fields(line))
        except (ValueError, TypeError, LookupError, RuntimeError) as error:
            self.failed += 1
            said = error.args[0] if isinstance(error, LookupError) and error.args else error
            found = {"line": self.count, "error": str(said)}
        return json.dumps(found)

    def _answer(self, given: dict[str, Any]) -> dict[str, Any]:
        id, time = given["id"], given["time"]
        echo = {"id": id, "time": time}
        if given.get("ask"):
            return echo | dict(self.stream.ask(id, time))
        if "values" not in given:
            raise ValueError('there are no "values"; a question has "ask": true instead')
        new = id not in self.stream
        if new and ("static" in given or "start" in given):
            self.stream.open(id, start=given.get("start"), static=given.get("static"))
        try:
            answer = self.stream.push(id, time, given["values"])
        except Exception:
            if new:
                self.stream.forget(id)
            raise
        return echo | ({"dropped": True} if answer is None else dict(answer))


def _fields(line: bytes) -> dict[str, Any]:
    """What a line says; ValueError for what is not an event."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a line of JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(
            f'expected an object such as {{"id": ..., "time": ..., "values": ...}}, got {_kind(given)}'
        )
    if unknown := [name for name in given if name not in FIELDS]:
        raise ValueError(
            f"there is no field {unknown[0]!r}; an event has {', '.join(FIELDS)}, and the features are inside values: "
            f'"values": {{{json.dumps(unknown[0], ensure_ascii=False)}: ...}}'
        )
    if type(given.get("id")) not in (str, int):
        raise ValueError(f"id must be text or a whole number, got {_kind(given.get('id'))}")
    for name in ("time", "start"):
        if (name == "time" or name in given) and type(given.get(name)) not in (int, float, str):
            raise ValueError(f"{name} must be a number or a date, got {_kind(given.get(name))}")
    if not isinstance(given.get("values", []), list | dict):
        raise ValueError(f"values must be an object or a list, got {_kind(given['values'])}")
    return given


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"{json.dumps(value)[:40]}"
