"""The bibliography: nothing twice, nothing that no page cites, and a background for every method of the catalogue."""

from __future__ import annotations

from heedful.attributions.method import background_of
from heedful.attributions.registry import METHODS
from heedful.audits.questions import TOPICS
from heedful.references import REFERENCES


def test_no_publication_is_listed_twice() -> None:
    on_arxiv = [reference.arxiv for reference in REFERENCES.values() if reference.arxiv]
    assert len({reference.title.casefold() for reference in REFERENCES.values()}) == len(REFERENCES)
    assert len(set(on_arxiv)) == len(on_arxiv)
    assert [*REFERENCES] == sorted(REFERENCES)
    assert all(key.endswith(f"-{reference.year}") for key, reference in REFERENCES.items())


def test_every_publication_is_cited_by_a_method_or_a_page_of_an_audit() -> None:
    by_methods = {key for make in METHODS.values() for key in background_of(make()).references}
    assert {key for topic in TOPICS.values() for key in topic.references} | by_methods == {*REFERENCES}


def test_every_method_of_the_catalogue_states_its_formula_and_when_not_to_use_it() -> None:
    for name, make in METHODS.items():
        background = background_of(make())
        assert 1 <= len(background.formula.splitlines()) <= 2, name
        assert background.avoid, name
        assert not background.avoid.endswith("."), name
    assert background_of(lambda model, batch, target: None).formula == ""
