"""The body of a server-side apply. An API server reads it as YAML, of which JSON is only nearly a part.

A trainer's text may be in it: a reason that quotes a report, a checkpoint's path, what a policy wrote. No
character of it may have the API server refuse the rest, such as a latch.
"""

from __future__ import annotations

import json
import re
from typing import Any

#: What YAML takes as it is between quotes is neither of these: they are no characters of YAML, or end a line.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_HALVES = re.compile("[\ud800-\udfff]")


def apply_body(value: Any) -> str:
    """The value as JSON that is YAML too; half of a surrogate pair, which neither has, is replaced.

    Beyond the basic plane a character stands as itself: as JSON escapes it, in two halves, YAML refuses it.
    """
    text = _HALVES.sub("\ufffd", json.dumps(value, ensure_ascii=False))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
