"""Real pages of heedful for the gallery: audits, explained texts, a report and the rating of a study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from docs.builder.examples import SENTENCE, bilstm, say_nothing, transformer
from docs.builder.reference_pages import ExampleAudit
from heedful import Explainer, Workspace, audit, papers, run
from heedful.attributions import LeaveOneOut, Lime, Random, RawAttention
from heedful.audits.schedule import AuditOptions
from heedful.data import Digits, Patches
from heedful.explanation import explanations_page
from heedful.models import SmallViT
from heedful.report import write_report
from heedful.reproduction.ledger import read_ledger
from heedful.reproduction.ledger_page import write_ledger_page
from heedful.study import Ranking, StudyAnswers, StudyOptions, build_study, rate_study
from heedful.study.answers import competition_ranks
from heedful.study.design import Slot
from heedful.study.rating import write_rating_page
from heedful.training import Adam, AttributionTable, TrainedModel, Training

METHODS = ("integrated-gradients", "leave-one-out", "lime", "gradient", "raw-attention", "rollout")
"""Methods of the audits of texts; controls are added."""
MINUTES, TEXTS, MORE_TEXTS = 20.0, 28, 84
"""The number of texts ends an audit, so that the site does not depend on the speed of the machine."""
LEDGER = Path(__file__).parents[2] / "reproduction"
OTHER_SENTENCES = ("the film is awful", "the music is moving and the plot is clumsy", "the acting is fine")


@dataclass(frozen=True)
class GalleryPage:
    """A page of the gallery.

    Args:
        address: of the page, below the gallery.
        about: what it is made of, in one or two sentences.
        command: what makes such a page.
    """

    title: str
    address: str
    about: str
    command: str


def digits_transformer() -> TrainedModel:
    """A small vision transformer on the handwritten digits of scikit-learn."""
    training = Training(epochs=6, batch_size=32, optimizer=Adam(lr=0.003))
    return TrainedModel(Digits(), Patches(2), SmallViT((1, 8, 8), 2, layers=2, heads=2, width=32), training)


def make_audits(build: Path, gallery: Path) -> list[ExampleAudit]:
    """Audits of the example models, with their pages in the gallery."""
    workspace, reviews = Workspace(build / "workspace"), build / "reviews.csv"
    audits = []
    for name, title, model, texts in (
        ("bilstm", "a BiLSTM with attention", bilstm(reviews), MORE_TEXTS),
        ("transformer", "a small transformer", transformer(reviews), TEXTS),
    ):
        chosen = tuple(method for method in METHODS if name == "transformer" or method != "rollout")
        options = AuditOptions(minutes=MINUTES, texts=texts, methods=chosen, only_methods=True)
        folder = gallery / f"audit-{name}"
        result = audit(
            (model, workspace), model.corpus, options=options, workspace=workspace, out=folder, say=say_nothing
        )
        audits.append(ExampleAudit(title, result))
    return audits


def make_pages(build: Path, gallery: Path, explainer: Explainer) -> list[GalleryPage]:
    """All other pages, and the list of all."""
    explained = [explainer.explain(text, methods=[*METHODS]) for text in (SENTENCE, *OTHER_SENTENCES)]
    (gallery / "explained.html").write_text(explanations_page(explained), encoding="utf-8")
    _audit_digits(build, gallery)
    demo = Workspace(build / "demo")
    run(papers.demo(synthetic=True), demo)
    write_report(demo, gallery / "report")
    _rate_simulated_study(build, gallery)
    write_ledger_page({name: read_ledger(LEDGER, name) for name in papers.PAPERS}, LEDGER, gallery / "ledger.html")
    return [
        GalleryPage(
            "Audit of a BiLSTM",
            "audit-bilstm/index.html",
            "A BiLSTM with additive attention, trained on generated reviews of films.",
            "heedful audit my-model reviews.csv",
        ),
        GalleryPage(
            "Audit of a transformer",
            "audit-transformer/index.html",
            "A transformer of two layers, trained on the same reviews.",
            "heedful audit my-model reviews.csv",
        ),
        GalleryPage(
            "Audit of a vision transformer",
            "audit-digits/index.html",
            "A small ViT, trained on the handwritten digits of scikit-learn.",
            'heedful.audit("my-vit", heedful.data.Digits(), out="audit")',
        ),
        GalleryPage(
            "Explained texts",
            "explained.html",
            "Four sentences, explained by seven methods.",
            "heedful explain my-model texts.txt --html explained.html",
        ),
        GalleryPage(
            "Report of trials",
            "report/index.html",
            "The trials of the demo: does attention explain a BiLSTM that was trained on a generated corpus?",
            "heedful report",
        ),
        GalleryPage(
            "The ledger of published numbers",
            "ledger.html",
            "Every published number of the five papers, and ours, from the folder `reproduction` of the repository.",
            "heedful reproduce --page ledger.html",
        ),
        GalleryPage(
            "Rating of a study",
            "rating.html",
            "A study about four methods. **The answers are simulated**, drawn from a planted order of the methods; no "
            "person took part.",
            "heedful study rate",
        ),
    ]


def _audit_digits(build: Path, gallery: Path) -> None:
    workspace, model = Workspace(build / "workspace"), digits_transformer()
    options = AuditOptions(
        minutes=MINUTES, texts=TEXTS, methods=("integrated-gradients", "raw-attention", "occlusion"), only_methods=True
    )
    out = gallery / "audit-digits"
    audit((model, workspace), model.corpus, options=options, workspace=workspace, out=out, say=say_nothing)


def _rate_simulated_study(build: Path, gallery: Path) -> None:
    """A study whose simulated people prefer the methods in the order in which they are named."""
    workspace, model = Workspace(build / "study"), bilstm(build / "reviews.csv")
    methods = ("leave-one-out", "lime", "attention", "random")
    for method in (LeaveOneOut(), Lime(), RawAttention(), Random()):
        workspace.get(AttributionTable(model, method, limit=60))
    study = build_study(workspace.root, methods, StudyOptions(items=24, per_person=16, people=16), title="Simulated")
    draw = np.random.default_rng(0)
    rankings = tuple(
        _simulated_ranking(person, slot, methods, draw) for person, plan in study.plans.items() for slot in plan
    )
    answers = StudyAnswers(methods, rankings, (), study.max_failed_checks)
    write_rating_page(rate_study(answers, "simulated answers"), gallery / "rating.html")


def _simulated_ranking(person: str, slot: Slot, methods: tuple[str, ...], draw: np.random.Generator) -> Ranking:
    names = [str(name) for name in slot.maps]
    worth = {name: float(methods.index(name)) if name in methods else 9.0 for name in names}
    order = [worth[name] + draw.normal() for name in names]
    worst = slot.asked
    return Ranking(
        person, slot.item, slot.occasion, dict(zip(names, competition_ranks(order), strict=True)), 5.0, worst
    )


def gallery_text(pages: list[GalleryPage]) -> str:
    """The page that shows all others in frames."""
    return "# Gallery\n\nPages that heedful wrote while this site was built, from models that were trained then. ".join(
        ("", "They open in a tab of their own, load nothing and need no server.\n\n" + "\n".join(_entries(pages)))
    )


def _entries(pages: list[GalleryPage]) -> Iterator[str]:
    for page in pages:
        yield f"## {page.title}\n\n{page.about}\n\n```text\n{page.command}\n```\n"
        address = f"gallery/{page.address}"
        frame = f'<iframe class="page" loading="lazy" src="{address}" title="{page.title}"></iframe>'
        link = f'<p><a href="{address}">{page.title}: open the page</a></p>'
        yield f"```{{raw}} html\n{frame}\n{link}\n```\n"
