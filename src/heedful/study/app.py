"""The web application of a study: pages that work without a script, behind unguessable links.

Blind: a page shows maps called A, B, C in the order of the person's plan, all drawn by one function on one scale; no
name or number of a method is in the page, the address or anything that is sent. Safe: no cookie and therefore no
request that another site could make in a person's name; forms carry a code that only the server can make; a strict
Content-Security-Policy; limits on sizes, rates and connections; no address of a visitor is stored or logged.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import math
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from anyio import CapacityLimiter, to_thread
from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heedful.figures import Series
from heedful.report.heatmap import SHADES, shade_class, shaded_spans
from heedful.report.html import read_template, template_environment
from heedful.study.answers import Occasion, competition_ranks
from heedful.study.connections import ConnectionLimits, allowed_connections, limited_protocol
from heedful.study.design import (
    CONSENT_FILE,
    CONTROL,
    INSTRUCTIONS_FILE,
    THANKS_FILE,
    Study,
    StudyItem,
    StudyKeys,
    StudyTask,
    form_code,
    read_keys,
    read_study,
    template_text,
    token_digest,
)
from heedful.study.storage import (
    THREADS,
    AnswerStore,
    PersonState,
    Recorded,
    answers_csv,
    collect_answers,
    open_store,
)
from heedful.types import UserError

SCALE = tuple(step / 8 for step in range(1, 9))
"""Strengths that the key of a page shows."""
PATCH_SIZE, FRAME = 10, 1.2
"""Size of a square of a drawing, and the width of its frame at full strength."""
MAX_BODY, MAX_FIELDS = 8192, 64
MAX_PATH = 128
BODY_SECONDS = 15.0
PERSON_RATE, PERSON_BURST = 5.0, 60.0
"""Requests per second of one person, and at once."""
STRANGER_RATE, STRANGER_BURST = 50.0, 200.0
"""The same for all requests without a known link together: guessing gets nowhere, and nobody's address is needed."""
DROPOUT_HOURS = 24
LETTERS = "ABCDEF"
N_NAMED = 5
"""Strongest words that are also listed, for readers who do not see the map."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",  # an address is a key
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "x-robots-tag": "noindex, nofollow",
    "cache-control": "no-store",
}
_STATIC = {"/study.css": "text/css", "/study.js": "text/javascript"}
_KEPT = "kept"
_NOTES = {_KEPT: "You already answered that page, and that answer was kept. Go back if you want to change it."}


class RateLimit:
    """Allows a number of requests at once and then a number per second, for each name."""

    def __init__(self, rate: float, burst: float, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._now = rate, burst, now
        self._left: dict[str, tuple[float, float]] = {}

    def allows(self, name: str) -> bool:
        """Whether one more request is allowed now; it is counted if so."""
        now = self._now()
        left, since = self._left.get(name, (self._burst, now))
        left = min(self._burst, left + self._rate * (now - since))
        self._left[name] = (left - 1, now) if left >= 1 else (left, now)
        return left >= 1


@dataclass(frozen=True)
class MapView:
    """One map of a page: its letter, its drawing, and its strongest words as a sentence."""

    letter: str
    drawing: Markup
    strongest: str


class StudyPages:
    """The pages of one study.

    Args:
        documents: the owner's texts by the name of their file, as HTML.
    """

    def __init__(self, study: Study, keys: StudyKeys, store: AnswerStore, documents: Mapping[str, Markup]) -> None:
        self.study, self.keys, self.store, self.documents = study, keys, store, documents
        self._items = {item.uid: item for item in self.study.items}
        self._people = RateLimit(PERSON_RATE, PERSON_BURST)
        self._strangers = RateLimit(STRANGER_RATE, STRANGER_BURST)
        self._map_view = functools.lru_cache(maxsize=1024)(self._draw)
        self._environment = template_environment(template_text)
        for template in ("document.html", "item.html", "admin.html"):
            self._environment.get_template(template)  # compiled before the first person waits for it
        self._threads = CapacityLimiter(THREADS)

    def routes(self) -> list[Route]:
        """All addresses; there are no others."""
        return [
            Route("/s/{token}", self._page(self.entry), methods=["GET"]),
            Route("/s/{token}/consent", self._page(self.give_consent), methods=["POST"]),
            Route("/s/{token}/instructions", self._page(self.instructions), methods=["GET"]),
            Route("/s/{token}/thanks", self._page(self.thanks), methods=["GET"]),
            Route("/s/{token}/withdraw", self._page(self.withdraw), methods=["GET", "POST"]),
            Route("/s/{token}/{number:int}", self._page(self.slot), methods=["GET", "POST"]),
            Route("/admin/{token}", self._admin(self.admin), methods=["GET"]),
            Route("/admin/{token}/answers.json", self._admin(self.export_json), methods=["GET"]),
            Route("/admin/{token}/answers.csv", self._admin(self.export_csv), methods=["GET"]),
            *(Route(path, self._static, methods=["GET"]) for path in _STATIC),
        ]

    # Requests

    def _page(self, handle: Callable[[Visit], Response]) -> Callable[[Request], Awaitable[Response]]:
        """A page of a person: who it is, how often they ask, and the form that they sent."""

        async def endpoint(request: Request) -> Response:
            token = str(request.path_params["token"])
            person = self.keys.people.get(token_digest(token))
            if person is None:
                raise self._stranger()
            if not self._people.allows(person):
                raise HTTPException(429, headers={"retry-after": "1"})
            form = await _read_form(request) if request.method == "POST" else {}
            visit = Visit(request, token, person, int(request.path_params.get("number", 0)), form)
            return await to_thread.run_sync(handle, visit, limiter=self._threads)

        return endpoint

    def _admin(self, handle: Callable[[str], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            token = str(request.path_params["token"])
            if token_digest(token) != self.keys.admin:
                raise self._stranger()
            if not self._people.allows("admin"):
                raise HTTPException(429, headers={"retry-after": "1"})
            return await to_thread.run_sync(handle, token, limiter=self._threads)

        return endpoint

    def _stranger(self) -> HTTPException:
        return HTTPException(404 if self._strangers.allows("") else 429)

    async def _static(self, request: Request) -> Response:
        name = request.url.path
        text = template_text(name[1:])
        text = read_template("heatmap.css") + text if name.endswith(".css") else text
        return Response(text, media_type=_STATIC[name], headers={"cache-control": "max-age=300"})

    def render(self, template: str, values: Mapping[str, object], status: int = 200) -> Response:
        """A page from its template; every text is escaped."""
        page = self._environment.get_template(template).render({"title": self.study.title, **values})
        return Response(page, status, media_type="text/html")

    # Pages of a person

    def entry(self, visit: Visit) -> Response:
        """Where a link leads: consent first, then where the person left off."""
        state = self._state(visit)
        if not state.consented:
            code = form_code(self.keys, visit.person, "consent")
            text = self.documents[CONSENT_FILE]
            return self.render("document.html", {"text": text, "token": visit.token, "consent": code})
        return _go(visit, self._next(visit.person, state.answers) if state.answers else "instructions")

    def give_consent(self, visit: Visit) -> Response:
        if not self._has_code(visit, "consent"):
            return self._outdated(visit)
        if visit.form.get("agree") != "yes":
            return _go(visit, "")
        if not self.store.consent(visit.person):
            raise HTTPException(404)
        return _go(visit, "instructions")

    def instructions(self, visit: Visit) -> Response:
        state = self._state(visit)
        if not state.consented:
            return _go(visit, "")
        step = self._next(visit.person, state.answers)
        text = self.documents[INSTRUCTIONS_FILE]
        onward, begun = f"/s/{visit.token}/{step}", bool(state.answers)
        return self.render("document.html", {"text": text, "token": visit.token, "onward": onward, "begun": begun})

    def thanks(self, visit: Visit) -> Response:
        state, plan = self._state(visit), self.study.plans[visit.person]
        if len(state.answers) < len(plan):
            return _go(visit, "")
        text = self.documents[THANKS_FILE]
        return self.render("document.html", {"text": text, "token": visit.token, "finished": len(plan)})

    def withdraw(self, visit: Visit) -> Response:
        """Ask once more, then delete everything."""
        self._state(visit)
        if self._has_code(visit, "withdraw"):
            self.store.erase(visit.person)
            text = Markup(
                "<h1>Deleted</h1><p>All your answers are deleted, and your link no longer works. Thank you.</p>"
            )
            return self.render("document.html", {"text": text})
        code = form_code(self.keys, visit.person, "withdraw")
        text = Markup("<h1>Withdraw</h1>")
        return self.render("document.html", {"text": text, "token": visit.token, "withdraw": code})

    def slot(self, visit: Visit) -> Response:
        """A page with an item, or the answer to it."""
        plan, state = self.study.plans[visit.person], self._state(visit)
        if not 1 <= visit.number <= len(plan):
            raise HTTPException(404)
        step = self._next(visit.person, state.answers)
        if not state.consented or (isinstance(step, int) and visit.number > step):
            return _go(visit, "")
        if visit.request.method != "POST":
            note = _NOTES.get(visit.request.query_params.get("note", ""), "")
            return self._item_page(visit, state, note)
        return self._answer(visit, state)

    def _answer(self, visit: Visit, state: PersonState) -> Response:
        slot = self.study.plans[visit.person][visit.number - 1]
        began, revision = visit.form.get("began", ""), visit.form.get("revision", "")
        if not self._has_code(visit, visit.number, revision, began):
            return self._outdated(visit)
        content, problem, better = (
            read_ranks(visit.form, len(slot.maps))
            if slot.task is StudyTask.RANK
            else read_guess(visit.form, self._items[slot.item].choices)
        )
        if problem:
            return self._item_page(visit, state, problem, better, status=422)
        seconds = time.time() - float(began)
        result = self.store.record(visit.person, visit.number - 1, content, seconds, int(revision))
        if result is Recorded.REFUSED:
            raise HTTPException(404)
        # Here the answer is on disk: only now is anything said about it.
        reached = self._next(visit.person, {*state.answers, visit.number - 1})
        step = f"{reached}?note={_KEPT}" if result is Recorded.KEPT else reached
        if visit.request.headers.get("accept") == "application/json":
            return JSONResponse({"next": f"/s/{visit.token}/{step}"})
        return _go(visit, step)

    def _item_page(
        self, visit: Visit, state: PersonState, note: str = "", better: Sequence[int] = (), *, status: int = 200
    ) -> Response:
        plan = self.study.plans[visit.person]
        slot, stored = plan[visit.number - 1], state.answers.get(visit.number - 1)
        item = self._items[slot.item]
        revision, began = str(0 if stored is None else stored.revision), f"{time.time():.3f}"
        if status != 200:  # still a change of what the person saw, not of what another device stored meanwhile
            revision, began = visit.form["revision"], visit.form["began"]
        chosen = (
            [visit.form.get(f"a{number}", "") for number in range(len(slot.maps))]
            if status != 200
            else [str(rank) for rank in stored.ranks]
            if stored is not None and slot.task is StudyTask.RANK
            else [""] * len(slot.maps)
        )
        values = {
            "token": visit.token,
            "number": visit.number,
            "total": len(plan),
            "is_practice": slot.occasion is Occasion.PRACTICE,
            "is_ranking": slot.task is StudyTask.RANK,
            "noun": "image" if item.image else "text",
            "item": item,
            "plain": self._plain(item),
            "asked": slot.asked or (LETTERS[slot.maps.index(CONTROL)] if CONTROL in slot.maps else ""),
            "maps": [self._map_view(slot.item, name, LETTERS[number]) for number, name in enumerate(slot.maps) if name],
            "chosen": chosen,
            "guess": visit.form.get("guess", "") if status != 200 else "" if stored is None else stored.guess,
            "is_change": stored is not None,
            "note": note,
            "is_problem": status != 200,
            "better": list(better),
            "revision": revision,
            "began": began,
            "code": form_code(self.keys, visit.person, visit.number, revision, began),
            "shades": [shade_class(strength, 1.0) for strength in SCALE],
            "patch_scale": patch_scale(),
        }
        return self.render("item.html", values, status)

    def _has_code(self, visit: Visit, *parts: object) -> bool:
        """Whether the form carries the code that the server made for this person and these parts."""
        right = form_code(self.keys, visit.person, *parts)
        return hmac.compare_digest(visit.form.get("code", "").encode(), right.encode())

    def _state(self, visit: Visit) -> PersonState:
        state = self.store.state(visit.person)
        if state.erased:
            raise HTTPException(404)
        return state

    def _next(self, person: str, answered: Collection[int]) -> int | str:
        """The number of the first page without an answer; "thanks" if there is none."""
        plan = self.study.plans[person]
        return next((number + 1 for number in range(len(plan)) if number not in answered), "thanks")

    def _outdated(self, visit: Visit) -> Response:
        text = Markup("<h1>This form is out of date</h1><p>Nothing was lost. Please continue where you were.</p>")
        values = {"text": text, "token": visit.token, "onward": f"/s/{visit.token}", "begun": True}
        return self.render("document.html", values, 400)

    # Drawings

    def _draw(self, uid: str, name: str, letter: str) -> MapView:
        """A map of an item: the same drawing for all methods."""
        item = self._items[uid]
        strengths = item.maps[name]
        strongest = sorted(range(len(strengths)), key=lambda word: (-strengths[word], word))[:N_NAMED]
        named = [word for word in strongest if shade_class(strengths[word], 1.0)]
        if item.patches is None:
            words = ", ".join(item.words[word] for word in named)
            return MapView(letter, text_drawing(item, strengths), words)
        corners = (item.words[word].split(",") for word in named)
        words = "; ".join(f"row {int(row) + 1}, column {int(column) + 1}" for row, column in corners)
        return MapView(letter, patch_drawing(item, strengths, f"Map {letter}. Strongest squares: {words}"), words)

    def _plain(self, item: StudyItem) -> Markup:
        blank = [0.0] * len(item.words)
        return text_drawing(item, blank) if item.patches is None else patch_drawing(item, blank, "The image")

    # The owner's pages

    def admin(self, token: str) -> Response:
        states, plans = self.store.states(), self.study.plans
        rows, now = [], time.time()
        for person, plan in plans.items():
            state = states.get(person, PersonState())
            idle = None if state.seen is None else (now - state.seen) / 3600
            seconds = [answer.seconds for answer in state.answers.values()]
            status = (
                "withdrawn"
                if state.erased
                else "finished"
                if len(state.answers) >= len(plan)
                else "not begun"
                if not state.consented
                else "dropped out"
                if idle is not None and idle > DROPOUT_HOURS
                else "at work"
            )
            rows.append((person, status, len(state.answers), len(plan), idle, statistics.median(seconds or [math.nan])))
        kinds = ("not begun", "at work", "finished", "dropped out", "withdrawn")
        counts = {kind: sum(row[1] == kind for row in rows) for kind in kinds}
        answered = sum(row[2] for row in rows)
        values = {
            "token": token,
            "rows": rows,
            "counts": counts,
            "answered": answered,
            "hours": DROPOUT_HOURS,
            "damaged": {person: state.damaged for person, state in states.items() if state.damaged},
        }
        return self.render("admin.html", values)

    def export_json(self, _: str) -> Response:
        text = collect_answers(self.study, self.store.states()).to_json()
        return _download(text, "application/json", "answers.json")

    def export_csv(self, _: str) -> Response:
        text = answers_csv(collect_answers(self.study, self.store.states()))
        return _download(text, "text/csv; charset=utf-8", "answers.csv")

    def error(self, _: Request, error: Exception) -> Response:
        """Every error as the same small page."""
        status = 503 if isinstance(error, SQLAlchemyError) else 500
        headers: Mapping[str, str] = {}
        if isinstance(error, HTTPException):
            status = 404 if error.status_code == 405 else error.status_code
            headers = error.headers or {}
        headings = {
            404: ("Not found", "There is no such page. Please check the link that you were given."),
            413: ("Too much", "This was more than the page accepts."),
            429: ("One moment", "Too many requests at once. Please try again in a second."),
        }
        heading, advice = headings.get(
            status, ("Please try again", "Something failed here. What was stored is safe; please reload the page.")
        )
        text = Markup("<h1>{}</h1><p>{}</p>").format(heading, advice)
        response = self.render("document.html", {"text": text}, status)
        response.headers.update({name: value for name, value in headers.items() if name != "Allow"})
        return response


@dataclass(frozen=True)
class Visit:
    """A request of a person."""

    request: Request
    token: str
    person: str
    number: int
    form: Mapping[str, str]


def read_ranks(form: Mapping[str, str], count: int) -> tuple[str, str, list[int]]:
    """The content of a ranking; or what is wrong with it, and the ranking that was probably meant."""
    fields = [form.get(f"a{number}", "") for number in range(count)]
    if not all(text.isascii() and text.isdigit() and 1 <= int(text[:3]) <= count and len(text) < 3 for text in fields):
        return "", f"Please give every map a place from 1 to {count}.", []
    ranks = [int(text) for text in fields]
    right = competition_ranks(ranks)
    if ranks == right:
        return json.dumps({"ranks": ranks}, separators=(",", ":")), "", []
    return "", explain_ranks(ranks), right


def explain_ranks(ranks: Sequence[int]) -> str:
    """Why these places are not a ranking.

    >>> explain_ranks([1, 2, 2, 3])
    'The places 1 2 2 3 do not fit: 2 maps share place 2, so the next place is 4, not 3.'
    >>> explain_ranks([2, 3, 3])
    'The places 2 3 3 do not fit: no map has place 1, which is for the best map.'
    """
    shown = " ".join(map(str, ranks))
    expected = 1
    for rank in sorted(set(ranks)):
        if rank != expected:
            if expected == 1:
                return f"The places {shown} do not fit: no map has place 1, which is for the best map."
            before = max(other for other in ranks if other < rank)
            sharing = ranks.count(before)
            reason = f"{sharing} maps share place {before}, so" if sharing > 1 else f"after place {before}"
            return f"The places {shown} do not fit: {reason} the next place is {expected}, not {rank}."
        expected += ranks.count(rank)
    return ""


def read_guess(form: Mapping[str, str], choices: Sequence[str]) -> tuple[str, str, list[int]]:
    """The content of a guess; or what is wrong with it. A form sends the number of the choice."""
    number = form.get("guess", "")
    if not (number.isascii() and number.isdigit() and len(number) < 4 and int(number) < len(choices)):
        return "", "Please choose one of the answers.", []
    return json.dumps({"guess": choices[int(number)]}, separators=(",", ":")), "", []


def text_drawing(item: StudyItem, strengths: Sequence[float]) -> Markup:
    """The words of a text, each with the class of its shade and without its number."""
    spaced = [("" if word == item.second or word in item.joined else " ", text) for word, text in enumerate(item.words)]
    spans = shaded_spans(spaced, Series("", tuple(strengths)), has_titles=False)
    parts = (spans[: item.second], spans[item.second :]) if item.second else (spans,)
    return Markup("\n".join(f"<p>{''.join(part).strip()}</p>" for part in parts))  # safe: every word is escaped


def patch_drawing(item: StudyItem, strengths: Sequence[float], label: str) -> Markup:
    """The picture of the page with a square on each patch; its frame is inside of the patch."""
    assert item.patches is not None
    rows, columns = item.patches
    size = PATCH_SIZE
    corners = (map(int, name.split(",")) for name in item.words)
    drawn = zip(corners, strengths, strict=True)
    squares = "".join(_square(row, column, strength) for (row, column), strength in drawn)
    box = f'viewBox="0 0 {columns * size} {rows * size}"'
    # Under squares the picture is grey and faint, so that their color and frames are seen on every picture.
    faint = ' class="faint"' if squares else ""
    use = f'<use href="#picture"{faint} width="{columns * size}" height="{rows * size}"/>'
    return Markup(  # safe: numbers, and a label that is escaped
        f'<svg class="picture" {box} role="img" aria-label="{escape(label)}">{use}{squares}</svg>'
    )


def _square(row: int, column: int, strength: float) -> str:
    """A square with its frame inside of the patch, empty without a shade; the style sheet has the same frame."""
    shade = shade_class(strength, 1.0)
    if not shade:
        return ""
    frame = FRAME * round(SHADES * strength) / SHADES
    corner = f'x="{PATCH_SIZE * column + frame / 2:g}" y="{PATCH_SIZE * row + frame / 2:g}"'
    return f'<rect class="{shade}" {corner} width="{PATCH_SIZE - frame:g}" height="{PATCH_SIZE - frame:g}"/>'


def patch_scale() -> Markup:
    """Squares of growing strength side by side."""
    squares = "".join(_square(0, column, strength) for column, strength in enumerate(SCALE))
    return Markup(f'<svg viewBox="0 0 {len(SCALE) * PATCH_SIZE} {PATCH_SIZE}">{squares}</svg>')


def _go(visit: Visit, step: int | str) -> Response:
    return RedirectResponse(f"/s/{visit.token}/{step}".rstrip("/"), status_code=303)


def _download(text: str, kind: str, name: str) -> Response:
    return Response(text, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


async def _read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of a field that comes twice the first counts."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise HTTPException(400)
    try:
        body = await request.body()
    except ClientDisconnect as error:
        raise HTTPException(400) from error
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise HTTPException(400) from error
    return dict(reversed(pairs))


# The application


class _Guard:
    """Sets the headers of every answer, and refuses long addresses and long or slow bodies before they are read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = [(name, value) for name, value in headers if name not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        length = dict(scope["headers"]).get(b"content-length", b"0")
        is_long = len(scope["path"]) > MAX_PATH or len(scope["query_string"]) > MAX_PATH
        if is_long or scope["method"] not in ("GET", "HEAD", "POST"):
            await Response(status_code=404)(scope, receive, send_safely)
        elif not length.isdigit() or int(length) > MAX_BODY:
            await Response(status_code=413, headers={"connection": "close"})(scope, receive, send_safely)
        else:
            await self.app(scope, _limited(receive), send_safely)


def _limited(receive: Receive) -> Receive:
    """Ends a body that is longer than it said or slower than a person's connection."""
    read, deadline = 0, time.monotonic() + BODY_SECONDS

    async def receive_part() -> Message:
        nonlocal read
        try:
            message = await asyncio.wait_for(receive(), max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            return {"type": "http.disconnect"}
        read += len(message.get("body", b""))
        return message if read <= MAX_BODY else {"type": "http.disconnect"}

    return receive_part


def create_app(folder: Path, database: str = "") -> ASGIApp:
    """The application of the study in this folder."""
    study, keys = read_study(folder), read_keys(folder)
    documents = {name: render_markdown(folder / name) for name in (CONSENT_FILE, INSTRUCTIONS_FILE, THANKS_FILE)}
    pages = StudyPages(study, keys, open_store(folder, study, keys, database), documents)
    handlers = {HTTPException: pages.error, SQLAlchemyError: pages.error, Exception: pages.error}
    app = Starlette(routes=pages.routes(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    return _Guard(app)  # outside of everything, so that errors have the headers too


def render_markdown(path: Path) -> Markup:
    """An owner's text as HTML; HTML in it is shown as text, and pictures, which could be elsewhere, are links."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid UTF-8; save it again in that encoding") from error
    return Markup(
        MarkdownIt("commonmark", {"html": False}).disable("image").enable("table").render(text)
    )  # safe: no HTML


def serve(
    folder: Path,
    host: str,
    port: int,
    database: str = "",
    say: Callable[[str], None] | None = None,
    *,
    per_address: int | None = None,
) -> None:
    """Serve a study until a signal comes.

    Args:
        per_address: see `ConnectionLimits`.
    """
    if not host.strip():
        raise UserError(
            "--host is empty; name an address: 127.0.0.1 for this machine only or 0.0.0.0 for every network"
        )
    app = create_app(folder, database)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Connections inherit it; otherwise a page waits 40 ms for an acknowledgement of its headers.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a port number"
        raise UserError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from error
    if say is not None:
        say(f"Serving {folder} at http://{host}:{listening.getsockname()[1]}; the links are in {folder / 'links.txt'}.")
        if host not in ("127.0.0.1", "::1", "localhost"):
            say("Links are keys: put a server with HTTPS in front of this one before you send them to people.")
    limits = ConnectionLimits(allowed_connections(), per_address)
    config = uvicorn.Config(
        app,
        http=limited_protocol(limits),  # h11, which limits the size of headers
        ws="none",
        access_log=False,  # it would keep addresses and links
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        backlog=2048,
    )
    uvicorn.Server(config).run(sockets=[listening])
