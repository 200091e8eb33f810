"""A study under load: many people at once over real HTTP, while the server is killed and started again.

Run `python -m benchmarks.study_load [--people 500] [--answers 20] [--kills 20] [--think 10] [--slow-headers 0]`.
Everybody gives consent, opens page after page, thinks for a random time and answers; a request that fails is sent
again, as a browser does. At the end every acknowledged answer must be in the database with the content that was
acknowledged, and none twice. Printed are the numbers and the latency of an answer (from the request to the
acknowledgement) while the server was running; exit code 1 if an answer is missing, changed or doubled, or if somebody
was not served within `--limit` seconds.

`--slow-headers 4100` opens as many connections beside them, from two addresses of this machine, one of which is that
of the people. They begin a request and never finish it; one that the server closes is opened again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from heedful.study.answers import Occasion
from heedful.study.design import Study, StudyOptions, StudyTask, write_study
from heedful.study.items import build_study
from tests.invented_studies import METHODS, free_port, read_links, text_page

HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 8.0
"""As in the script of the pages."""
SETTLING_SECONDS = 10.0
SLOW_OPENING_SECONDS = 5.0
"""Within which the connections with slow headers are opened."""


@dataclass
class Results:
    """What the simulated people saw."""

    acknowledged: dict[tuple[str, int], str] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    """Latencies of answers that were sent when the server had run for some seconds."""
    started: float = 0.0
    page_latencies: list[float] = field(default_factory=list)
    failures: int = 0
    busy: int = 0
    slow_opened: int = 0
    slow_closed: int = 0
    slow_open: int = 0
    most_slow_open: int = 0


class Connection:
    """One kept-alive HTTP connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
        """Status and body; OSError if the connection breaks."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        body = b"" if form is None else urlencode(form).encode()
        kind = "content-type: application/x-www-form-urlencoded\r\n" if form is not None else ""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n{kind}"
            f"content-length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            header = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            found = re.search(r"content-length: (\d+)", header)
            content = await reader.readexactly(int(found[1])) if found else b""
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise OSError("broken") from error
        return int(header.split(" ", 2)[1]), content.decode()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def insist(
    connection: Connection, results: Results, method: str, path: str, form: dict[str, str] | None = None
) -> tuple[str, float]:
    """The body of a request that is repeated until it succeeds, and the seconds of the last attempt."""
    wait = RETRY_SECONDS
    while True:
        begun = time.perf_counter()
        try:
            status, body = await connection.request(method, path, form)
            if status < 400:
                return body, time.perf_counter() - begun
            if status not in (429, 503):
                raise RuntimeError(f"{method} {path[:20]}: status {status}")
            results.busy += 1
        except OSError:
            results.failures += 1
        await asyncio.sleep(wait * random.uniform(0.5, 1.5))
        wait = min(MAX_RETRY_SECONDS, 2 * wait)


async def take_part(study: Study, person: str, link: str, port: int, think: float, results: Results) -> None:
    """One person from consent to the last page."""
    rng, connection = random.Random(person), Connection(port)
    await asyncio.sleep(rng.uniform(0, think))
    body, _ = await insist(connection, results, "GET", link)
    await insist(connection, results, "POST", f"{link}/consent", {**dict(HIDDEN.findall(body)), "agree": "yes"})
    for number, slot in enumerate(study.plans[person], 1):
        body, seconds = await insist(connection, results, "GET", f"{link}/{number}")
        results.page_latencies.append(seconds)
        form = dict(HIDDEN.findall(body))
        count = len(slot.maps)
        if slot.task is StudyTask.RANK:
            ranks = rng.sample(range(1, count + 1), count)
            form |= {f"a{place}": str(rank) for place, rank in enumerate(ranks)}
            content = json.dumps({"ranks": ranks}, separators=(",", ":"))
        await asyncio.sleep(rng.expovariate(1 / think))
        _, seconds = await insist(connection, results, "POST", f"{link}/{number}", form)
        results.acknowledged[person, number - 1] = content
        results.latencies.append(seconds)
        if time.perf_counter() - seconds > results.started + SETTLING_SECONDS:
            results.settled.append(seconds)
    connection.close()


async def hold_headers(number: int, port: int, results: Results) -> None:
    """A connection that begins a request and never finishes it; opened again whenever it is closed."""
    rng = random.Random(number)
    await asyncio.sleep(rng.uniform(0, SLOW_OPENING_SECONDS))
    while True:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.0.0.{1 + number % 2}", 0)
            )
        except OSError:  # the server was killed
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            continue
        results.slow_opened += 1
        results.slow_open += 1
        results.most_slow_open = max(results.most_slow_open, results.slow_open)
        try:
            writer.write(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n")
            while await reader.read(1024):
                pass
        except OSError:
            pass
        finally:
            results.slow_open -= 1
            writer.close()
        results.slow_closed += 1
        await asyncio.sleep(rng.uniform(0.5, 1.5))


class Server:
    """The command `heedful study serve`, killed and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        command = "from heedful.cli import main; main()"
        self.command = [sys.executable, "-c", command, "study", "serve", str(folder), "--port", str(port), "--quiet"]
        self.port = port
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    async def wait(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def disturb(server: Server, kills: int, results: Results, total: int) -> None:
    """Kill the server at random moments, spread over all answers."""
    rng = random.Random(0)
    for number in range(kills):
        target = total * (number + rng.random()) / kills
        while len(results.acknowledged) < min(target, total - 1):
            await asyncio.sleep(0.01)
        server.kill()
        server.start()
        await server.wait()
        results.started = time.perf_counter()


def compare(folder: Path, results: Results) -> tuple[int, int, int, int]:
    """Rows in the database, doubled pages, acknowledged answers that are missing, and that have another content."""
    connection = sqlite3.connect(folder / "answers.sqlite")
    rows = connection.execute("SELECT person, slot, content FROM heedful_answers").fetchall()
    connection.close()
    stored = {(person, slot): content for person, slot, content in rows}
    missing = sum(key not in stored for key in results.acknowledged)
    changed = sum(stored.get(key, content) != content for key, content in results.acknowledged.items())
    return len(rows), len(rows) - len(stored), missing, changed


async def run(
    people: int, answers: int, kills: int, think: float, folder: Path, *, slow_headers: int, limit: float
) -> int:
    options = StudyOptions(60, answers, people, practice=0)
    study = build_study(text_page(folder / "page.html", n=80), METHODS, options)
    assert all(slot.occasion is not Occasion.PRACTICE for plan in study.plans.values() for slot in plan)
    write_study(study, folder / "study", "")
    links, port = read_links(folder / "study"), free_port()
    server, results = Server(folder / "study", port), Results()
    try:
        await server.wait()
        begun = time.perf_counter()
        slow = [asyncio.create_task(hold_headers(number, port, results)) for number in range(slow_headers)]
        try:
            await asyncio.wait_for(
                asyncio.gather(
                    *(take_part(study, person, links[person], port, think, results) for person in study.plans),
                    disturb(server, kills, results, people * answers),
                ),
                limit,
            )
        except TimeoutError:
            print(f"after {limit:g} s not everybody was served")
        for task in slow:
            task.cancel()
        seconds = time.perf_counter() - begun
    finally:
        server.kill()
    rows, doubled, missing, changed = compare(folder / "study", results)
    print(f"{people} people, {answers} answers each, {kills} kills, {think:g} s of thought per page: {seconds:.0f} s")
    known = len(results.acknowledged)
    print(f"acknowledged {known}, stored {rows}, twice {doubled}, missing {missing}, changed {changed}")
    for name, latencies in (
        ("an answer", results.latencies),
        (f"an answer, {SETTLING_SECONDS:g} s after a start and later", results.settled),
        ("a page", results.page_latencies),
    ):
        if len(latencies) < 2:
            continue
        cuts = statistics.quantiles(latencies, n=100)
        print(f"latency of {name}: median {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms ({len(latencies)})")
    print(f"requests that were sent again: {results.failures} broken, {results.busy} refused for now")
    wanted = people * answers
    if slow_headers:
        print(
            f"slow headers: {slow_headers} connections at a time, {results.most_slow_open} at most were open, "
            f"{results.slow_opened} were opened and {results.slow_closed} closed by the server; "
            + ("everybody served" if known == wanted else f"{wanted - known} answers were not served")
        )
    return 0 if (known, rows, doubled, missing, changed) == (wanted, wanted, 0, 0, 0) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--people", type=int, default=500)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--think", type=float, default=10.0)
    parser.add_argument("--slow-headers", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0)
    given = parser.parse_args()
    files = given.slow_headers + 2 * given.people + 256
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files > most:
        parser.error(f"{files} open files are needed, but {most} are allowed: raise the limit with ulimit -n {files}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), most))
    with tempfile.TemporaryDirectory() as temporary:
        work = run(
            given.people,
            given.answers,
            given.kills,
            given.think,
            Path(temporary),
            slow_headers=given.slow_headers,
            limit=given.limit,
        )
        sys.exit(asyncio.run(work))
