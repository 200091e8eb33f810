"""The objects of Google Cloud Storage as far as a workspace needs them, in memory, for tests: creation on condition.

Emulators that can be installed answer a condition with success, whatever exists; the one of this server is decided
under a lock, as Google's is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

BOUNDARY = b"--==0=="


class _Handler(BaseHTTPRequestHandler):
    """Uploads in one request, downloads, deletions and listings by prefix."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]
    lock: threading.Lock
    conditions: list[str]

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Store an object; 412 if it exists and the condition is that it does not."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        _, header, content = body.split(BOUNDARY, 2)
        name = str(json.loads(header.split(b"\n\n", 1)[1])["name"])
        content = content.split(b"\n\n", 1)[1].removesuffix(b"\n" + BOUNDARY + b"--")
        condition = parse_qs(urlsplit(self.path).query).get("ifGenerationMatch", [""])[0]
        with self.lock:
            self.conditions.append(f"{name} {condition}".strip())
            if condition == "0" and name in self.objects:
                self._fail(412)
                return
            self.objects[name] = content
        self._answer(200, json.dumps(self._description(name)).encode())

    def do_GET(self) -> None:
        """The content of an object, its description, or the objects with a prefix."""
        url, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        resource, _, name = url.path.partition("/o/")
        content = self.objects.get(unquote(name))
        if name and content is None:
            self._fail(404)
        elif content is not None:
            is_content = resource.startswith("/download/") or query.get("alt") == ["media"]
            self._answer(200, content if is_content else json.dumps(self._description(unquote(name))).encode())
        elif url.path.endswith("/o"):
            prefix = query.get("prefix", [""])[0]
            rest = [path.removeprefix(prefix) for path in self.objects if path.startswith(prefix)]
            items = [self._description(prefix + path) for path in rest if "/" not in path]
            folders = sorted({f"{prefix}{path.partition('/')[0]}/" for path in rest if "/" in path})
            self._answer(200, json.dumps({"items": items, "prefixes": folders}).encode())
        else:
            self._answer(200, b"{}")

    def do_DELETE(self) -> None:
        """Delete an object."""
        with self.lock:
            content = self.objects.pop(unquote(urlsplit(self.path).path.partition("/o/")[2]), None)
        if content is None:
            self._fail(404)
        else:
            self._answer(204, b"")

    def _description(self, name: str) -> dict[str, str]:
        return {"name": name, "bucket": "bucket", "size": str(len(self.objects[name])), "generation": "1"}

    def _fail(self, status: int) -> None:
        self._answer(status, json.dumps({"error": {"code": status, "message": f"status {status}"}}).encode())

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that closes its connection."""


@contextmanager
def serve_gcs() -> Iterator[tuple[str, list[str]]]:
    """The address of a new server on this machine, and the names of uploaded objects with their conditions."""
    conditions: list[str] = []
    handler = type("_Own", (_Handler,), {"objects": {}, "lock": threading.Lock(), "conditions": conditions})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", conditions
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
