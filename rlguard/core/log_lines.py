"""One JSON object a log line, the same from the guard and from the operator. Formats and hands over."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Literal

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


def handler(form: Literal["text", "json"], text: str) -> logging.Handler:
    """A handler for standard error; `text` is the format of a line that is not JSON."""
    made = logging.StreamHandler()
    made.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(text))
    return made


class JsonFormatter(logging.Formatter):
    """Lines with `time` (ISO 8601, UTC), `level`, `logger`, `message`, `exception` if there is one, and more.

    Fields given as `extra` keep their names unless the line has one of that name already. What JSON cannot
    hold is written as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end; it contains no line break."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        extras = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return json.dumps(_plain(extras | line), allow_nan=False)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return str(value)
