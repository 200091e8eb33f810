"""Connections of the study's server: requests that never arrive end, and keep nobody out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPResponse
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from heedful.study import app as application
from heedful.study import connections
from heedful.study.design import StudyOptions, write_study
from heedful.study.items import build_study
from tests.invented_studies import METHODS, free_port, text_page

REQUEST = b"GET /study.css HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Serves a study with the given limit per address; its port."""
    servers: list[uvicorn.Server] = []
    make = uvicorn.Server

    def keep(config: uvicorn.Config) -> uvicorn.Server:
        servers.append(make(config))
        return servers[-1]

    monkeypatch.setattr(uvicorn, "Server", keep)
    study = build_study(text_page(tmp_path / "p.html"), METHODS, StudyOptions(8, 5, 2))
    write_study(study, tmp_path / "study", "")
    threads: list[threading.Thread] = []

    def start(per_address: int | None = None) -> int:
        port = free_port()
        run = lambda: application.serve(tmp_path / "study", "127.0.0.1", port, per_address=per_address)  # noqa: E731
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        while not servers or not servers[-1].started:
            time.sleep(0.01)
        return port

    yield start
    for server in servers:
        server.should_exit = True
    for thread in threads:
        thread.join(10)


def connect(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))


def answer(connection: socket.socket, request: bytes = REQUEST) -> int:
    """The status that a request gets; 0 if the connection is closed."""
    with suppress(ConnectionError):
        connection.sendall(request)
        response = HTTPResponse(connection)
        response.begin()
        response.read()
        return response.status
    return 0


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /study.css HTTP/1.1\r\nhost: x\r\n",
        REQUEST + b"GET /stu",
        b"POST /nobody HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\na",
    ],
    ids=["nothing", "headers", "second headers", "form"],
)
def test_a_request_that_does_not_arrive_is_ended(
    beginning: bytes, served: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3, raising=False)
    with connect(served()) as slow:
        slow.sendall(beginning)
        began = time.monotonic()
        slow.settimeout(10)
        with suppress(ConnectionError):
            while slow.recv(65536):  # what it was answered before
                if beginning:
                    slow.sendall(b"x")  # a byte now and then does not help
        assert time.monotonic() - began < 8


def test_dripping_headers_are_ended(served: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3, raising=False)
    with connect(served()) as slow:
        slow.sendall(b"GET /study.css HTTP/1.1\r\nhost: ")
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 8:
                slow.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < 8


def test_everybody_is_served_though_others_fill_all_connections(
    served: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten connections in all; another address, then the same address, holds four times as many."""
    monkeypatch.setattr(application, "allowed_connections", lambda: 10, raising=False)
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0, raising=False)
    port = served()
    with ExitStack() as stack:
        patient = stack.enter_context(connect(port))
        assert answer(patient) == 200
        slow = []
        for source in ("127.0.0.2", "127.0.0.1"):
            for _ in range(40):
                slow.append(stack.enter_context(connect(port, source)))
                slow[-1].sendall(b"GET / HTTP/1.1\r\n")
            with connect(port) as other:
                assert answer(other) == 200
        assert answer(patient) == 200, "an idle connection outlives those that send nothing"
        assert sum(not is_closed(each) for each in slow) <= 10


def test_one_address_has_no_more_connections_than_it_may(served: Callable[..., int]) -> None:
    port = served(per_address=5)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(port, "127.0.0.2")) for _ in range(12)]
        other = stack.enter_context(connect(port))
        assert answer(other) == 200
        assert [is_closed(each) for each in slow] == [True] * 7 + [False] * 5


def test_this_machine_is_not_limited_unless_it_is_asked_for() -> None:
    limits = connections.ConnectionLimits()
    assert [limits._limit(each) for each in ("127.0.0.1", "::1", "192.0.2.7", "2001:db8::/64")] == [0, 0, 256, 256]
    assert connections.ConnectionLimits(per_address=3)._limit("127.0.0.1") == 3


def test_websockets_and_other_upgrades_are_plain_requests(served: Callable[..., int]) -> None:
    upgrade = b"GET /study.css HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    with connect(served()) as connection:
        assert answer(connection, upgrade) == 200
