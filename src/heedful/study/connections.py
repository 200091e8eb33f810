"""Limits on the connections of the study's server, so that nobody who holds many of them keeps others out.

A request must arrive within some seconds. Where there are too many connections, in all or from one address, the one
that has waited longest is closed for a new one; a connection whose request is being answered is never closed for
another. An address is kept in memory while it has a connection, and is neither stored nor logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network, ip_address

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 20.0
"""Time in which a request, its headers and its form, must arrive."""
MAX_CONNECTIONS = 4000
RESERVED_FILES = 128
"""Open files that are not connections: the database, libraries, templates."""
PER_ADDRESS = 256
"""Connections of one address, unless it is this machine's own: a proxy in front of the server has them all."""
GRACE_SECONDS = 1.0
"""A new connection has this time to send its request before it is closed for another."""
_IPV6_PREFIX = 64
"""A subscriber has a whole network of this size."""


class ConnectionLimits:
    """All connections of a server by address, and which of them wait for a request.

    Args:
        most: connections in all.
        per_address: connections of one address, 0 for any number; None for `PER_ADDRESS`, of this machine any number.
    """

    def __init__(self, most: int = MAX_CONNECTIONS, per_address: int | None = None) -> None:
        self.most, self.per_address = most, per_address
        self._count = 0
        self._addresses: dict[str, _AddressConnections] = {}

    def admits(self, connection: LimitedProtocol) -> bool:
        """Count a new connection and close another one if there are too many; False if none can be closed."""
        limit, of_address = self._limit(connection.address), self._addresses.get(connection.address)
        admitted = True
        if limit and of_address is not None and len(of_address) >= limit:
            admitted = self._close_one(of_address)
        elif self._count >= self.most:  # whoever has most connections gives one up
            admitted = self._close_one(max(self._addresses.values(), key=len))
        self._count += 1
        address = self._addresses.setdefault(connection.address, _AddressConnections())
        address.arriving[connection] = time.monotonic()
        return admitted

    def _limit(self, address: str) -> int:
        if self.per_address is not None:
            return self.per_address
        return 0 if not address or ip_address(address.partition("/")[0]).is_loopback else PER_ADDRESS

    def _close_one(self, address: _AddressConnections) -> bool:
        connection = next(address.by_waiting(time.monotonic()), None)
        if connection is None:
            return False
        self.forget(connection)
        connection.transport.abort()
        return True

    def mark(self, connection: LimitedProtocol, *, is_arriving: bool, is_idle: bool) -> None:
        """Note whether the request of a connection is arriving, or it has none, or one that is being answered."""
        address = self._addresses.get(connection.address)
        if address is None or connection not in address:
            return
        since = address.arriving.get(connection, time.monotonic())
        address.remove(connection)
        group = address.arriving if is_arriving else address.idle if is_idle else address.answered
        group[connection] = since if is_arriving else time.monotonic()

    def forget(self, connection: LimitedProtocol) -> None:
        """Count a connection no more; it may be unknown."""
        address = self._addresses.get(connection.address)
        if address is not None and connection in address:
            address.remove(connection)
            self._count -= 1
            if not len(address):
                del self._addresses[connection.address]


class _AddressConnections:
    """The connections of one address by what they do, each with the time since when, oldest first."""

    def __init__(self) -> None:
        self.arriving: dict[LimitedProtocol, float] = {}
        self.idle: dict[LimitedProtocol, float] = {}
        self.answered: dict[LimitedProtocol, float] = {}

    def __len__(self) -> int:
        return len(self.arriving) + len(self.idle) + len(self.answered)

    def __contains__(self, connection: LimitedProtocol) -> bool:
        return any(connection in group for group in (self.arriving, self.idle, self.answered))

    def remove(self, connection: LimitedProtocol) -> None:
        for group in (self.arriving, self.idle, self.answered):
            group.pop(connection, None)

    def by_waiting(self, now: float) -> Iterator[LimitedProtocol]:
        """What can be closed, in this order: requests that do not arrive, idle connections, requests that do."""
        first = next(iter(self.arriving.items()), None)
        if first is not None and first[1] < now - GRACE_SECONDS:
            yield first[0]
        yield from self.idle
        yield from self.arriving


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP with a time in which a request must arrive, which uvicorn has for idle connections only."""

    limits: ConnectionLimits
    address: str = ""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or close it."""
        super().connection_made(transport)
        self.address = address_group(self.client[0]) if self.client else ""
        if not self.limits.admits(self):
            transport.abort()
            return
        self._timer = self.loop.call_later(REQUEST_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        self._stop_timer()
        self.limits.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Begin or stop to wait for the rest of a request."""
        super().data_received(data)
        is_incomplete = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not is_incomplete:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
        self.limits.mark(self, is_arriving=is_incomplete and not self._is_answering, is_idle=not self._is_answering)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self.limits.mark(self, is_arriving=False, is_idle=not self._is_answering)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its other end does not read what was sent."""
        super().timeout_keep_alive_handler()
        self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limited_protocol(limits: ConnectionLimits) -> type[LimitedProtocol]:
    """The protocol of one server, whose connections share these limits."""
    return type(LimitedProtocol.__name__, (LimitedProtocol,), {"limits": limits})


def address_group(address: str) -> str:
    """The address whose connections are counted together: of IPv6 the network of a subscriber.

    >>> [address_group(each) for each in ("192.0.2.7", "2001:db8::7", "::1", "::ffff:192.0.2.7")]
    ['192.0.2.7', '2001:db8::/64', '::1', '192.0.2.7']
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket
        return ""
    if not isinstance(parsed, IPv6Address) or parsed.is_loopback:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((parsed, _IPV6_PREFIX), strict=False))


def allowed_connections() -> int:
    """How many connections the limit on open files allows, which is raised as far as it may be."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - RESERVED_FILES))
