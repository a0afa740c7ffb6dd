"""Stands between operators and guards: bytes go through, until it is cut.

An operator asks a guard at its pod's address. A relay listens there and passes everything on to the guard.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

CHUNK = 65_536
SECONDS = 10.0  # for what the loop is asked to do


class Network:
    """See the module. Any thread may call it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._cut = False
        self._lines = set[asyncio.Task[None]]()
        self._relayed = set[tuple[str, int]]()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def relay(self, address: str, port: int, target: int) -> None:
        """Pass on what comes to this port, to another port of the same address. Once is enough."""
        if (address, port) in self._relayed:
            return

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._lines.add(task)
            try:
                with suppress(asyncio.CancelledError):  # it is cut
                    await self._pass_on(reader, writer, address, target)
            finally:
                self._lines.discard(task)
                writer.close()

        self._do(asyncio.start_server(meet, address, port))
        self._relayed.add((address, port))

    def cut(self, hangs: bool) -> None:
        """Nothing gets through: new connections hang or are closed, and those that are open end."""

        async def cut() -> None:
            self._cut = not hangs
            self._open.clear()
            for line in self._lines:
                line.cancel()

        self._do(cut())

    def heal(self) -> None:
        """Everything gets through again."""

        async def heal() -> None:
            self._cut = False
            self._open.set()

        self._do(heal())

    def close(self) -> None:
        """It is gone, and every connection with it."""
        self.cut(hangs=False)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, target: int
    ) -> None:
        if self._cut:
            return
        await self._open.wait()
        with suppress(OSError):  # nobody listens there: the guard is down
            there, back = await asyncio.open_connection(address, target)
            try:
                ways = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
            finally:
                back.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
