"""Carving: deterministic, by class, equal texts together."""

from __future__ import annotations

from collections import Counter

from heedful.data.splitting import hold_out, normalized_content
from heedful.types import Example
from tests.corpus_laws import SENTENCES


def test_carving_ignores_the_order_of_rows_and_keeps_equal_texts_together() -> None:
    heap = [Example(str(n), (text,), n % 2) for n, text in enumerate(SENTENCES)]
    heap += [Example(f"{n}, again", (f" {text.upper()}",), n % 2) for n, text in enumerate(SENTENCES[:8])]
    rest, part = hold_out(heap, 0.25)
    assert not {normalized_content(example) for example in rest} & {normalized_content(example) for example in part}
    assert [example.uid for example in sorted((*rest, *part), key=heap.index)] == [example.uid for example in heap]
    # 20 rows of each class: 5 wanted, and a pair of equal texts at the end may bring one more.
    assert all(count in (5, 6) for count in Counter(example.label for example in part).values())
    assert set(hold_out(heap[::-1], 0.25)[1]) == set(part)
    assert set(hold_out(heap, 0.25, seed=1)[1]) != set(part)


def test_carving_never_empties_a_class_and_takes_from_each() -> None:
    heap = [Example("a", ("one",), 0), Example("b", ("two",), 0), Example("c", ("three",), 1)]
    rest, part = hold_out(heap, 0.01)
    assert [example.label for example in part] == [0]
    assert {example.label for example in rest} == {0, 1}
    assert hold_out(heap, 0.0)[1] == ()


def test_a_text_with_two_labels_does_not_straddle_either() -> None:
    heap = [Example(f"{n}{label}", (f"text {n}",), label) for n in range(40) for label in (0, 1)]
    rest, part = hold_out(heap, 0.5)
    assert not {normalized_content(example) for example in rest} & {normalized_content(example) for example in part}
    assert len(part) == 40
