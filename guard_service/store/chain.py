"""The chain over a store's content: one digest in which each event covers all before it.

It is kept in the store itself, written in the transaction of the events that it covers, and in `guard.head`
beside it. So what was damaged, exchanged or lost is noticed when the store is opened: SQLite by itself takes
a write-ahead log with a flipped bit for a shorter one, and a row with a flipped digit for a row.

What stands beside the events is covered as it is now: the meta rows (`noted`), and what seldom changes
(`still`).
"""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from typing import Any, Self

DIGEST_BYTES = 16  # it is proof against accidents; who may write here may write anything
#: SQLite joins so many events into one text at once, outside the interpreter lock, or fewer: so much of them
#: and one more. An announcement of a checkpoint has up to 330 KB.
PAGE = 5_000
PAGE_BYTES = 4 << 20

_SIZE = "SELECT max(seq), sum(length(body)) FROM events WHERE seq > ? AND seq <= ?"
_ENDS = """
SELECT max(seq) FROM (
    SELECT seq, sum(length(body)) OVER (ORDER BY seq) / ? AS page FROM events WHERE seq > ? AND seq <= ?
) GROUP BY page ORDER BY page
"""
# JSON holds no control character, so those that part rows and columns are theirs alone. SQLite reads the rows
# in the order of their key, which `seq` is.
_EVENTS = """
SELECT group_concat(
    seq || char(31) || attempt || char(31) || step || char(31) || pass || char(31) || kind || char(31)
    || body, char(30)
) FROM (SELECT * FROM events WHERE seq > ? AND seq <= ? ORDER BY seq)
"""
_OUTCOMES = """
SELECT seq || char(31) || items || char(31) || ifnull(proxy_items, '') FROM outcomes
WHERE seq > ? AND seq <= ? ORDER BY seq
"""
_META = "SELECT key, value FROM meta ORDER BY key"
_STILL = """
SELECT name, ifnull(sql, '') FROM (SELECT name, sql FROM sqlite_schema ORDER BY name)
UNION ALL SELECT seq, state FROM snapshot
"""
_NO_END = 2**63 - 1


def _hash(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES)


@dataclass(slots=True)
class Chain:
    """A digest that grows with the events. `seq`: the newest one that it covers."""

    seq: int
    _events: Any
    _outcomes: Any

    @classmethod
    def empty(cls) -> Self:
        """Of no event."""
        return cls(0, _hash(), _hash())

    def grown(self, db: sqlite3.Connection, until: int = _NO_END) -> Chain:
        """This chain with the events up to number `until` that follow it in `db`."""
        last, events, outcomes = self.seq, self._events.copy(), self._outcomes.copy()
        while ends := _page_ends(db, last, until):
            for end in ends:
                (lines,) = db.execute(_EVENTS, (last, end)).fetchone()
                events.update(lines.encode())
                events.update(b"\x1e")
                last = end
        for (line,) in db.execute(_OUTCOMES, (self.seq, last)):
            outcomes.update(f"{line}\x1e".encode())
        return Chain(last, events, outcomes)

    @property
    def digest(self) -> str:
        """Of the events and their outcomes."""
        return str(_hash(self._events.digest() + self._outcomes.digest()).hexdigest())

    def sealed(self, noted: bytes, still: bytes) -> str:
        """Of all that, and of what `noted` and `still` cover."""
        return str(_hash(self.digest.encode() + noted + still).hexdigest())


def _page_ends(db: sqlite3.Connection, last: int, until: int) -> list[int]:
    """The last event of each page of the next `PAGE` events after `last`, up to `until`; [] of none."""
    span = (last, min(last + PAGE, until))
    newest, size = db.execute(_SIZE, span).fetchone()
    if newest is None or size <= PAGE_BYTES:
        return [] if newest is None else [newest]
    return [end for (end,) in db.execute(_ENDS, (PAGE_BYTES, *span))]


def noted(db: sqlite3.Connection) -> bytes:
    """Digest of the meta rows."""
    return _of_pairs(db, _META)


def still(db: sqlite3.Connection) -> bytes:
    """Digest of the schema and the snapshot."""
    return _of_pairs(db, _STILL)


def _of_pairs(db: sqlite3.Connection, query: str) -> bytes:
    digest = _hash()
    for name, value in db.execute(query):
        digest.update(f"{name}\x1f{value}\x1e".encode())
    return bytes(digest.digest())
