"""Posts a notice to a webhook: bounded in time, never redirected, and its URL is a secret.

Only the standard library, so that `rlguard run` can use it, too. No message names the URL: for Slack it is
all that one needs to write to the channel.
"""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from guard_core._version import __version__
from guard_core.loopback import is_loopback
from guard_core.notices import Notice, Shape, body

log = logging.getLogger(__name__)

#: How long one try may take, whatever the other side does, seconds.
SECONDS = 5.0
#: Pauses between the tries, seconds.
PAUSES = (1.0, 5.0, 30.0, 120.0)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Whom to tell."""

    shape: Shape
    url: str = field(repr=False)


class WebhookError(Exception):
    """It was not taken. `again`: another try could end differently."""

    def __init__(self, message: str, again: bool) -> None:
        super().__init__(message)
        self.again = again


def webhooks(urls: Mapping[str, str], named: str) -> tuple[Webhook, ...]:
    """The webhooks of these URLs by shape; `named` says in errors where they come from.

    Raises:
        ValueError: a shape or a URL cannot be used; the URL is not in the message.
    """
    for shape in urls:
        if shape not in list(Shape):
            raise ValueError(f"{named}: there is no shape {shape!r}: use {' or '.join(Shape)}")
    return tuple(_checked(Shape(shape), url.strip(), named) for shape, url in sorted(urls.items()))


def _checked(shape: Shape, url: str, named: str) -> Webhook:
    wrong = f"{named}: the value for {shape}"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"{wrong} is not a URL") from None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{wrong} is not a URL: give all of it, such as https://hooks.slack.com/services/…")
    if parts.username is not None:
        raise ValueError(f"{wrong} has a user before the host, which is not sent")
    if parts.scheme != "https" and not (
        parts.scheme == "http" and (shape is Shape.ALERTMANAGER or is_loopback(host))
    ):
        raise ValueError(f"{wrong} must begin with https://, because it is a secret")
    return Webhook(shape, url)


def deliver(
    webhook: Webhook,
    notice: Notice,
    pauses: Sequence[float] = PAUSES,
    sleep: Callable[[float], object] = time.sleep,
) -> str:
    """Tell it, with another try after each of the pauses; why it was given up, "" if it was taken."""
    for pause in (*pauses, None):
        try:
            send(webhook, notice)
            return ""
        except WebhookError as error:
            if pause is None or not error.again:
                return str(error)
            log.info("%s was not notified of %s: %s; again in %g s", webhook.shape, notice.run, error, pause)
            sleep(pause)
    raise AssertionError("the last try returns")


def send(webhook: Webhook, notice: Notice) -> None:
    """One try.

    Raises:
        WebhookError: it was not taken.
    """
    url = urlsplit(webhook.url)
    connection = _connection(url)
    deadline = threading.Timer(SECONDS, _cut, (connection,))
    deadline.daemon = True
    deadline.start()
    try:
        headers = {"Content-Type": "application/json", "User-Agent": f"rlguard/{__version__}"}
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        connection.request("POST", target, body(webhook.shape, notice), headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise WebhookError(f"no response ({type(error).__name__})", again=True) from None
    finally:
        deadline.cancel()
        connection.close()
    if 300 <= status < 400:
        raise WebhookError(f"it redirects (HTTP {status}), which is not followed", again=False)
    if status >= 400:
        raise WebhookError(f"HTTP {status}", again=status >= 500 or status in {408, 429})


def _connection(url: SplitResult) -> http.client.HTTPConnection:
    """To the host, through the proxy of the environment if it is for https and for this host."""
    host = url.hostname or ""
    if url.scheme == "http":
        return http.client.HTTPConnection(host, url.port, timeout=SECONDS)
    proxy = None if proxy_bypass(host) else urlsplit(getproxies().get("https", ""))
    if proxy is None or not proxy.hostname:
        return http.client.HTTPSConnection(host, url.port, timeout=SECONDS)
    connection = http.client.HTTPSConnection(proxy.hostname, proxy.port, timeout=SECONDS)
    connection.set_tunnel(host, url.port or 443)
    return connection


def _cut(connection: http.client.HTTPConnection) -> None:
    """End whatever it waits for: a server that sends a byte now and then meets no other time-out."""
    try:
        connection.sock.shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):
        log.debug("the connection had ended, or had not begun")
