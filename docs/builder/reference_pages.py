"""Pages about every method, trial, audit question and measure, from the objects themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docs.builder.api_pages import public_names
from docs.builder.examples import SENTENCE, Passes, count_passes
from docs.builder.markdown import markdown_text, option_rows, paragraphs, raw_html, table
from heedful import Explainer, measures
from heedful.attributions.method import background_of, is_stochastic, tags_of
from heedful.attributions.registry import METHODS
from heedful.audits import Audit
from heedful.audits.questions import TOPICS
from heedful.audits.topics import Question, Topic
from heedful.audits.verdict_rules import THRESHOLDS
from heedful.catalogue import TRIALS
from heedful.formatting import format_number
from heedful.measures.erasure import FAITHFULNESS_MEASURES, INFIDELITY, FaithfulnessMeasure
from heedful.papers import PAPERS
from heedful.references import REFERENCES
from heedful.report.charts import svg_file
from heedful.results import Decision, Verdict
from heedful.trials.trial import Trial
from heedful.types import Method

READS = {
    "attention": "attention weights",
    "gradient": "gradients",
    "output": "outputs of changed texts",
    "nothing": "nothing of the model",
}


@dataclass(frozen=True)
class ExampleAudit:
    """An audit of an example model, and the name of that model in a sentence."""

    model: str
    audit: Audit


def cite(key: str) -> str:
    """A publication as one Markdown sentence with a link to its preprint."""
    reference = REFERENCES[key]
    where = f", {reference.where}" if reference.where else ""
    link = f" [arXiv:{reference.arxiv}](https://arxiv.org/abs/{reference.arxiv})" if reference.arxiv else ""
    return f"{reference.authors} ({reference.year}). *{reference.title}*{where}.{link}"


def kinds_without(models_page: str) -> tuple[int, dict[str, int]]:
    """From the table of `heedful models --all`: kinds of networks with scores, and those without, by method."""
    lines = [line for line in models_page.splitlines() if line.startswith("| ")]
    headings = [cell.strip() for cell in lines[0].strip("|").split("|")]
    place, counted = headings.index("without"), headings.index("methods")
    kinds, without = 0, dict[str, int]()
    for line in lines[2 if set(lines[1]) <= set("|- ") else 1 :]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if "/" in cells[counted]:
            kinds += 1
            for name in filter(None, (name.strip() for name in cells[place].split(","))):
                without[name] = without.get(name, 0) + 1
    return kinds, without


def describe_passes(passes: Passes) -> str:
    """What a method asks of the model."""
    texts = "1 text" if passes.forward == 1 else f"{passes.forward} texts"
    if not passes.backward:
        return f"{texts} read, no gradients" if passes.forward else "the model is not read"
    return f"{texts} read, {passes.backward} gradient{'s' * (passes.backward > 1)}"


@dataclass(frozen=True)
class MethodFacts:
    """What the page of a method and the matrix of all methods show."""

    name: str
    passes: Passes
    kinds: int
    kinds_with: int

    @property
    def works_on(self) -> str:
        """On how many kinds of networks it gives scores."""
        return f"{self.kinds_with} of {self.kinds}"


def gather_facts(explainer: Explainer, models_page: str) -> list[MethodFacts]:
    """The facts of every method of the catalogue."""
    kinds, without = kinds_without(models_page)
    return [MethodFacts(name, count_passes(explainer, name), kinds, kinds - without.get(name, 0)) for name in METHODS]


def write_method_pages(
    folder: Path, explainer: Explainer, facts: Sequence[MethodFacts], audits: Sequence[ExampleAudit]
) -> list[str]:
    """A page for every method, the matrix and the gallery of the same sentence; returns the names of the pages."""
    folder.mkdir(parents=True)
    for fact in facts:
        (folder / f"{fact.name}.md").write_text(method_page(fact, explainer, audits), encoding="utf-8")
    (folder / "index.md").write_text(_method_index(facts), encoding="utf-8")
    (folder / "sentence.md").write_text(_sentence_page(explainer), encoding="utf-8")
    return ["sentence", *(fact.name for fact in facts)]


def method_page(fact: MethodFacts, explainer: Explainer, audits: Sequence[ExampleAudit]) -> str:
    """The page of one method."""
    method = METHODS[fact.name]()
    tags, background = tags_of(method), background_of(method)
    first, rest, _ = paragraphs(type(method))
    shown = explainer.explain(SENTENCE, methods=[fact.name])
    warnings = [f"Do not use it {background.avoid}."]
    if tags.optimizes:
        measured = ", ".join(tags.optimizes)
        warnings.append(f"It computes {measured} itself: comparisons on these measures favor it.")
    if is_stochastic(method):
        warnings.append("It draws random numbers: another seed gives other scores.")
    sections = [
        f"# {fact.name}\n\n{markdown_text(first)}\n",
        f"```text\n{background.formula}\n```\n",
        markdown_text(rest) + "\n" if rest else "",
        raw_html(shown.to_html()),
        "The picture is real output: the transformer that this site trains when it is built, on generated reviews.\n",
        "## Facts\n\n" + table(("question", "answer"), _fact_rows(fact)),
        "## When not to use it\n\n" + "\n".join(f"- {markdown_text(warning)}" for warning in warnings) + "\n",
        "## Use it\n\n"
        f'```bash\nheedful explain my-model "a quiet film with a fine ending" --method {fact.name}\n'
        f"heedful audit my-model reviews.csv --method {fact.name}\n```\n",
    ]
    if rows := option_rows(method, type(method)):
        sections.append(
            f"## Options\n\nIn Python `heedful.attributions.{type(method).__name__}(...)`.\n\n"
            + table(("option", "default", "values", "meaning"), rows)
        )
    sections.append(_audited(fact.name, audits))
    if background.references:
        sections.append("## Literature\n\n" + "\n".join(f"- {cite(key)}" for key in background.references) + "\n")
    return "\n".join(filter(None, sections))


def _fact_rows(fact: MethodFacts) -> Iterator[tuple[str, str]]:
    tags = tags_of(METHODS[fact.name]())
    yield "What are the scores made of?", READS[tags.reads]
    sign = "A negative score counts against the class." if tags.signed else "None: scores are weights, large or small."
    yield "What does the sign mean?", sign
    differs = "yes" if tags.target_specific else "no: the map is the same for every class"
    yield "Does it differ between classes?", differs
    complete = "no"
    if tags.completeness_tolerance is not None:
        complete = "yes: scores sum to the difference between the output and that of the baseline, within "
        complete += f"{tags.completeness_tolerance:g} of it"
    elif background_of(METHODS[fact.name]()).adds_up:
        complete = "yes, by construction: scores sum to the output minus that of the text without its features"
    yield "Do scores add up (completeness)?", complete
    yield "What does it cost?", f"{describe_passes(fact.passes)}, counted on the sentence above (9 words)"
    needs = "attention" if tags.needs_attention else "embeddings" if tags.reads == "gradient" else "outputs only"
    yield "What must the network show?", needs
    yield "On which networks does it work?", f"{fact.works_on} kinds that were tried ([list](../models.md))"
    yield "How do tokens become words?", {"sum": "scores are added", "mean": "scores are averaged"}[tags.pooling]
    yield "Is it a control?", "yes: it must do badly" if tags.is_control else "no"


def _audited(name: str, audits: Sequence[ExampleAudit]) -> str:
    rows = []
    for example in audits:
        for method in (method for method in example.audit.methods if method.name == name):
            for answer in method.answers:
                if answer.verdict is not Verdict.NOT_TESTED:
                    number = f"{format_number(answer.statistic.value)}" if answer.evidence else ""
                    link = f"[{TOPICS[answer.question].label}](../questions/{answer.question}.md)"
                    rows.append((example.model, link, answer.verdict.value, number))
    if not rows:
        return ""
    note = "Audits of the [example models](../gallery.md) of this site; they say nothing about other models.\n\n"
    return "## In audits\n\n" + note + table(("model", "question", "verdict", "number"), rows)


def _is_complete(method: Method) -> bool:
    """Whether scores add up, measured or by construction."""
    return tags_of(method).completeness_tolerance is not None or background_of(method).adds_up


def _method_index(facts: Sequence[MethodFacts]) -> str:
    rows = []
    for fact in facts:
        tags = tags_of(METHODS[fact.name]())
        rows.append(
            (
                f"[{fact.name}]({fact.name}.md)",
                "control" if tags.is_control else READS[tags.reads],
                "yes" if tags.signed else "no",
                "yes" if tags.target_specific else "no",
                "yes" if _is_complete(METHODS[fact.name]()) else "no",
                str(fact.passes.forward),
                str(fact.passes.backward),
                fact.works_on,
            )
        )
    headings = ("method", "made of", "signed", "differs between classes", "complete", "texts", "gradients", "networks")
    return (
        "# Methods\n\nEvery method of the catalogue. *Texts* is what the model reads, and *gradients* what is taken of "
        "its outputs, to explain one sentence of nine words; *networks* is the number of kinds of networks, of those "
        "in [Supported networks](../models.md), on which the method gives scores. "
        "All of them on one sentence: [the same sentence](sentence.md).\n\n" + table(headings, rows)
    )


def _sentence_page(explainer: Explainer) -> str:
    shown = explainer.explain(SENTENCE, methods=[*METHODS])
    return (
        "# The same sentence by every method\n\n"
        "One transformer, one sentence, every method of the catalogue. In the reviews that it was trained on, the last "
        "clause decides more than the first. The maps differ: which of them can be trusted is what an "
        "[audit](../audit.md) finds out, and a glance does not.\n\n" + raw_html(shown.to_html())
    )


def write_question_pages(folder: Path, static: Path, audits: Sequence[ExampleAudit]) -> list[str]:
    """A page for every question of an audit, with the charts of the example audits."""
    folder.mkdir(parents=True)
    static.mkdir(parents=True, exist_ok=True)
    for name, topic in TOPICS.items():
        (folder / f"{name}.md").write_text(_question_page(topic, static, audits), encoding="utf-8")
    (folder / "index.md").write_text(_verdict_page(), encoding="utf-8")
    return [*TOPICS]


def _question_page(topic: Topic, static: Path, audits: Sequence[ExampleAudit]) -> str:
    pictures = []
    for number, example in enumerate(audits):
        for place, chart in enumerate(topic.charts(example.audit)[:2]):
            file = f"{topic.name}-{number}-{place}.svg"
            (static / file).write_text(svg_file(chart), encoding="utf-8")
            caption = f"{chart.title}: audit of {example.model}"
            pictures.append(f"![{caption}](../_static/questions/{file})\n\n*Audit of {example.model}.*\n")
    lines = [
        f"# {topic.label[:1].upper()}{topic.label[1:]}\n",
        f"**{topic.title}**\n",
        f"## What is measured\n\n{markdown_text(topic.measured)}\n",
        *pictures[:3],
        f"## The null\n\n{markdown_text(topic.null)}\n",
        f"## From the number to the verdict\n\n{markdown_text(topic.rule)}\n",
    ]
    if isinstance(topic, Question):
        deciding = [f"`{value:g}`" for value in topic.thresholds_used(THRESHOLDS) if value]
        numbers = f" Thresholds: {', '.join(deciding)}." if deciding else ""
        lines.append(f"For the decision on a method: {topic.role.value}.{numbers}\n")
    lines.append(f"## What the verdict does not mean\n\n{markdown_text(topic.limits)}\n")
    lines.append("## Literature\n")
    lines += [f"- {cite(key)}\n  {REFERENCES[key].point}" for key in topic.references]
    return "\n".join(lines) + "\n"


def _verdict_page() -> str:
    verdicts = {
        Verdict.SUPPORTED: "The data show it: the interval lies on the right side of the limit, for all methods that "
        "were tested together (Holm).",
        Verdict.NOT_SUPPORTED: "The data show the opposite.",
        Verdict.UNDECIDED: "The interval contains the limit. It is not a weak yes or a weak no: more texts decide, and "
        "the page says how many.",
        Verdict.NOT_TESTED: "The question was not asked of this method or this model, and the page says why.",
    }
    decisions = {
        Decision.SHOW: (
            "Every required question is supported, no desired one is refuted, and it is not clearly behind the most "
            "faithful method.",
            "Show it, with the caveat.",
        ),
        Decision.NOT_ALONE: (
            "It could be shown, but a desired question is refuted.",
            "Show it together with a method that may be shown, and say what failed.",
        ),
        Decision.BEATEN: (
            "It is not refuted, but clearly far behind the method that the reason names.",
            "Show that method.",
        ),
        Decision.UNDECIDED: (
            "A required question, or its distance from the best method, is undecided or was not tested.",
            "Do not show it yet; audit more texts.",
        ),
        Decision.MISLEADING: (
            "People find it plausible, but it is not faithful or does not depend on the model.",
            "Do not show it: it convinces people of what the model does not do.",
        ),
        Decision.HIDE: (
            "It is not faithful or does not depend on the model, or predictions do not rest on words.",
            "Do not show it.",
        ),
    }
    rows = [
        (
            f"[{topic.label}]({name}.md)",
            topic.title,
            topic.null,
            topic.role.value if isinstance(topic, Question) else "",
        )
        for name, topic in TOPICS.items()
    ]
    return (
        "# How to read a verdict\n\n"
        + table(("verdict", "meaning"), [(verdict.value, meaning) for verdict, meaning in verdicts.items()])
        + "\n## From verdicts to a decision\n\n"
        + table(("decision", "meaning", "what to do"), [(name.value, *texts) for name, texts in decisions.items()])
        + "\nThe [rules](../audit.md#from-verdicts-to-a-decision) say how far is far.\n\n## The questions\n\n"
        + table(("question", "in words", "compared with", "for the decision"), rows)
    )


def write_trial_pages(folder: Path) -> list[str]:
    """A page for every trial of the catalogue."""
    folder.mkdir(parents=True)
    rows = []
    for name, trial in TRIALS.items():
        (folder / f"{name}.md").write_text(_trial_page(name, trial), encoding="utf-8")
        rows.append((f"[{name}]({name}.md)", paragraphs(trial)[0], PAPERS[trial.paper].title))
    text = "# Trials\n\nOne claim each, tested on one model.\n\n" + table(("trial", "what it measures", "from"), rows)
    (folder / "index.md").write_text(text, encoding="utf-8")
    return [*TRIALS]


def _trial_page(name: str, trial: type[Trial]) -> str:
    first, rest, _ = paragraphs(trial)
    paper = PAPERS[trial.paper]
    sections = [
        f"# {name}\n\n**{markdown_text(trial.claim)}**\n",
        f"{markdown_text(first)}\n",
        f"{markdown_text(rest)}\n" if rest else "",
        f"## What it does not show\n\n{markdown_text(trial.limits)}\n",
        f"## Source\n\n{markdown_text(trial.source)}. heedful reproduces it with `heedful run {paper.name}`: "
        f"{markdown_text(paper.title)}; [protocol](../papers.md).\n",
        f"## Options\n\nIn Python `heedful.trials.{trial.__name__}(...)`.\n\n"
        + table(("option", "default", "values", "meaning"), option_rows(trial, trial)),
    ]
    return "\n".join(filter(None, sections))


def write_measure_pages(folder: Path) -> list[str]:
    """A page for every measure of faithfulness and every function of `heedful.measures`."""
    folder.mkdir(parents=True)
    rows, names = list[tuple[str, str, str]](), []
    for measure in (*FAITHFULNESS_MEASURES.values(), INFIDELITY):
        (folder / f"{measure.name}.md").write_text(_measure_page(measure), encoding="utf-8")
        rows.append((f"[{measure.name}]({measure.name}.md)", measure.description, measure.direction))
        names.append(measure.name)
    for name in public_names("heedful.measures"):
        function: Callable[..., object] = getattr(measures, name)
        (folder / f"{name}.md").write_text(_function_page(name, function), encoding="utf-8")
        rows.append((f"[{name}]({name}.md)", markdown_text(paragraphs(function)[0]), ""))
        names.append(name)
    text = "# Measures\n\n" + table(("measure", "what it is", "better"), rows)
    text += "\nNames in other libraries: [the table of the tour](../tour.md#names-of-measures-here-and-elsewhere).\n"
    (folder / "index.md").write_text(text, encoding="utf-8")
    return names


def _measure_page(measure: FaithfulnessMeasure) -> str:
    first, rest, _ = paragraphs(measure.compute) if measure.compute.__name__ != "<lambda>" else ("", "", {})
    return (
        f"# {measure.name}\n\n{markdown_text(measure.description)}\n\nBetter: {measure.direction}.\n\n"
        + (f"{markdown_text(first)}\n\n{markdown_text(rest)}\n\n" if first else "")
        + "The trial [faithfulness](../trials/faithfulness.md) computes it for every text and method, with random "
        "scores as the control. It is computed from outputs of texts whose units were removed in the order of the "
        "scores: `heedful.measures.erasure.ErasureOutputs`.\n"
    )


def _function_page(name: str, function: Callable[..., object]) -> str:
    first, rest, arguments = paragraphs(function)
    text = inspect.cleandoc(inspect.getdoc(function) or "")
    example = "\n".join(line.strip() for line in text[text.find(">>>") :].splitlines()) if ">>>" in text else ""
    return (
        f"# {name}\n\n{markdown_text(first)}\n\n```python\nheedful.measures.{name}{_signature(function)}\n```\n\n"
        + (f"{markdown_text(rest)}\n\n" if rest else "")
        + "".join(f"- `{argument}`: {markdown_text(meaning)}\n" for argument, meaning in arguments.items())
        + (f"\n```pycon\n{example}\n```\n" if example else "")
    )


def _signature(function: Callable[..., object]) -> str:
    return str(inspect.signature(function)).replace("'", "")


def write_bibliography(path: Path) -> None:
    """All publications, with where heedful uses each."""
    used: dict[str, list[str]] = {key: [] for key in REFERENCES}
    for name, make in METHODS.items():
        for key in background_of(make()).references:
            used[key].append(f"[{name}](methods/{name}.md)")
    for name, topic in TOPICS.items():
        for key in topic.references:
            used[key].append(f"[{topic.label}](questions/{name}.md)")
    lines = [f"- {cite(key)}\n  {REFERENCES[key].point} Cited by: {', '.join(used[key])}.\n" for key in REFERENCES]
    path.write_text("# Bibliography\n\n" + "\n".join(lines), encoding="utf-8")
