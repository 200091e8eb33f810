"""Learning to Scaffold: arms, sizes, seeds, weights, data with rationales, and a small real run."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from heedful import papers
from heedful.data.splitting import SubsampledCorpus
from heedful.data.text_corpora import MLQE
from heedful.execution import runner
from heedful.models.small_transformers import ScalarMix, SmallViT, TruncatedTransformer
from heedful.models.transformer import Transformer
from heedful.papers import scaffold
from heedful.papers.scaffold import PLAUSIBILITY_METHODS, ScaffoldOptions, scaffold_setting
from heedful.results import value_of
from heedful.store.recipe import Recipe
from heedful.store.workspace import Workspace
from heedful.training.attribution_tables import AttributionTable, ImageSample
from heedful.training.smat import LearnedAttributionTable, SMaT
from heedful.training.student_arms import SMAT, count_layers, shortened_student
from heedful.training.teacher import LearnedExplanation, MethodExplanation
from heedful.training.trained_model import OnOtherData, TrainedModel
from heedful.trials.performance import Performance
from heedful.trials.plausibility import Plausibility
from heedful.trials.simulability import Simulability
from heedful.types import Split, UserError
from tests.networks import network
from tests.tiny import WORDS, Sentences
from tests.training.test_checkpoint import fine_tuned

CORPORA = ScaffoldOptions.known_corpora
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A little checkpoint that stands for the pretrained transformer."""
    return str(fine_tuned(tmp_path_factory.mktemp("encoder"), names=("negative", "positive")))


def simulability(recipes: list[Recipe]) -> Simulability:
    """The one trial of students among the recipes."""
    (found,) = (recipe for recipe in recipes if isinstance(recipe, Simulability))
    return found


def test_texts_have_every_arm_with_the_papers_sizes_seeds_and_weights(encoder: str) -> None:
    recipes = ScaffoldOptions(("sst",), checkpoints=(encoder,)).recipes()
    assert [type(recipe) for recipe in recipes] == [Performance, Simulability, Plausibility]
    arms = dict(simulability(recipes).arms)
    expected = {
        "no explanation": 0.0,
        "random": 5.0,
        "gradient x input": 0.2,
        "attention": 5.0,
        "attention, last layer": 5.0,
        "SMaT": 5.0,
        "gradient norm": 0.2,
        "integrated gradients": 0.2,
        "rollout": 5.0,
        "ridge on leave-one-out": 5.0,
        "SMaT of layers": 0.2,
    }
    assert {name: students[0].explanation_weight for name, students in arms.items()} == expected
    for students in arms.values():
        assert [(each.data.train_size, each.seed) for each in students] == [
            (size, seed) for size in (500, 1000, 2000) for seed in (0, 9, 11, 30, 69)
        ]
    explanations = [students[0].explanation for students in arms.values()]
    assert [each.temperature for each in explanations if isinstance(each, MethodExplanation)] == [
        0.1,
        0.1,
        1.0,
        0.5,
        0.05,
    ]


def test_a_teacher_is_fine_tuned_once_under_a_scalar_mix_and_its_students_are_trained_by_adam(
    encoder: str,
) -> None:
    found = scaffold_setting(CORPORA["sst"], encoder, ScaffoldOptions())
    assert isinstance(found.teacher, TrainedModel)
    assert found.teacher.architecture == ScalarMix(Transformer(encoder))
    assert (found.teacher.training.epochs, found.teacher.training.batch_size, found.teacher.training.max_grad_norm) == (
        1,
        16,
        1.0,
    )
    assert (
        found.training.batch_size,
        found.training.patience,
        found.training.max_grad_norm,
        found.training.optimizer.lr,
    ) == (32, 11, 5.0, 1e-4)
    quality = scaffold_setting(CORPORA["mlqe-ro-en"], encoder, ScaffoldOptions())
    assert (quality.training.batch_size, quality.training.patience, quality.explainer_lr, quality.student_sizes) == (
        16,
        6,
        1e-3,
        (2100, 4200),
    )


def test_students_of_a_deep_checkpoint_have_three_layers_and_those_of_a_flat_one_all(
    encoder: str, tmp_path: Path
) -> None:
    network("bert", num_hidden_layers=5).save_pretrained(tmp_path / "deep")
    assert shortened_student(str(tmp_path / "deep"), 3) == ScalarMix(
        TruncatedTransformer(Transformer(str(tmp_path / "deep")), 3)
    )
    assert scaffold_setting(CORPORA["sst"], encoder, ScaffoldOptions()).student_architecture == ScalarMix(
        Transformer(encoder)
    )
    network("distilbert").save_pretrained(tmp_path / "distilled")
    assert (count_layers(str(tmp_path / "deep")), count_layers(str(tmp_path / "distilled"))) == (5, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        count_layers(str(tmp_path / "empty"))


def test_seeds_share_examples_and_explainers_the_dev_split_as_in_the_paper_unless_asked_otherwise(encoder: str) -> None:
    for options, expected in (
        (ScaffoldOptions(), ("fixed", True)),
        (ScaffoldOptions(sampling="redrawn", divide_dev=True), ("redrawn", False)),
    ):
        data = scaffold_setting(CORPORA["sst"], encoder, options).student_data
        assert (data.sampling, data.share_dev) == expected
    with pytest.raises(UserError, match="'again'"):
        ScaffoldOptions(sampling="again")  # type: ignore[arg-type]


def test_only_students_of_the_raw_reviews_learn_from_texts_that_their_teacher_has_not_seen(encoder: str) -> None:
    pools = {
        name: scaffold_setting(CORPORA[name], encoder, ScaffoldOptions()).student_data.source_split
        for name in ("sst", "imdb", "imdb-raw")
    }
    assert pools == {"sst": "train", "imdb": "train", "imdb-raw": "test"}
    assert scaffold_setting(CORPORA["digits"], None, ScaffoldOptions()).student_data.source_split == "train"
    long = dict(simulability(ScaffoldOptions(("imdb-raw",), checkpoints=(encoder,)).recipes()).arms)
    assert "ridge on leave-one-out" not in long


def test_teachers_of_the_other_texts_are_applied_to_film_reviews_with_marks(encoder: str) -> None:
    both = ScaffoldOptions(("sst", "imdb-raw", "eraser-movies"), checkpoints=(encoder,)).recipes()
    visits = [
        (
            recipe.subject.model.corpus.name,
            recipe.subject.corpus.name,
            recipe.subject.merge_splits,
            recipe.limit,
        )
        for recipe in both
        if isinstance(recipe, Plausibility) and isinstance(recipe.subject, OnOtherData)
    ]
    assert visits == [
        ("sst", "sst", False, 500),
        ("sst", "eraser-movies", True, 500),
        ("imdb-raw", "eraser-movies", True, 500),
    ]
    (alone,) = ScaffoldOptions(("eraser-movies",), checkpoints=(encoder,)).recipes()
    assert alone == both[3]
    assert isinstance(alone, Plausibility)
    assert alone.methods == PLAUSIBILITY_METHODS
    ((name, learned),) = alone.learned_explainers
    assert (name, type(learned)) == (SMAT, LearnedAttributionTable)
    assert isinstance(learned, LearnedAttributionTable)
    assert [(each.data.train_size, each.seed) for each in learned.students] == [
        (1000, seed) for seed in (0, 9, 11, 30, 69)
    ]


def test_quality_is_a_number_and_source_and_target_are_judged_apart(encoder: str) -> None:
    recipes = ScaffoldOptions(("mlqe-et-en",), checkpoints=(encoder,)).recipes()
    marked, by_size = (recipe for recipe in recipes if isinstance(recipe, Plausibility))
    assert (marked.rank, by_size) == ("score", replace(marked, rank="size"))
    assert marked.head_scores == by_size.head_scores
    assert marked.subject.corpus == MLQE(("et-en",))
    assert marked.parts == ("source", "target")
    learned = marked.learned_explainers[0][1]
    assert isinstance(learned, LearnedAttributionTable)
    assert {each.data.train_size for each in learned.students} == {4200}
    assert ScaffoldOptions().sizes_for(CORPORA["mlqe"]) == (2100, 4200, 8400)


def test_images_are_seen_by_a_small_vision_transformer_in_classes_as_large_as_there_are_images(tmp_path: Path) -> None:
    recipes = ScaffoldOptions(("digits",)).recipes()
    assert [type(recipe) for recipe in recipes] == [
        Performance,
        Simulability,
        ImageSample,
        AttributionTable,
        AttributionTable,
    ]
    trial = simulability(recipes)
    assert trial.subject.architecture == ScalarMix(SmallViT((1, 8, 8), 2))
    assert ScaffoldOptions(data_dir=tmp_path).sizes_for(CORPORA["digits"]) == (125, 250, 500)
    (tmp_path / "images").mkdir()
    pixels, labels = np.zeros((3000, 2, 2, 3), dtype=np.uint8), np.arange(3000) % 10
    pixels += np.arange(3000, dtype=np.uint16).view(np.uint8).reshape(3000, 2)[:, :, None, None]
    names = np.array([f"thing {number}" for number in range(10)])
    np.savez(
        tmp_path / "images" / "cifar10.npz",
        x_train=pixels,
        y_train=labels,
        x_test=pixels[:20],
        y_test=labels[:20],
        class_names=names,
    )
    assert ScaffoldOptions(data_dir=tmp_path).sizes_for(CORPORA["cifar10"]) == (2250, 2550)
    assert ScaffoldOptions().sizes_for(CORPORA["cifar10"]) == (2250, 4500, 9000)


def test_sizes_seeds_limit_and_quick_reach_the_students(encoder: str) -> None:
    chosen = simulability(
        ScaffoldOptions(("sst",), checkpoints=(encoder,), n_seeds=3, limit=70, student_sizes=(40, 20, 40)).recipes()
    )
    students = dict(chosen.arms)["SMaT"]
    assert [(each.data.train_size, each.seed) for each in students] == [
        (size, seed) for size in (20, 40) for seed in (0, 9, 11)
    ]
    assert {each.data.eval_limit for each in students} == {70}
    more = simulability(ScaffoldOptions(("sst",), checkpoints=(encoder,), n_seeds=7, student_sizes=(20,)).recipes())
    assert [each.seed for each in more.arms[0][1]] == [0, 9, 11, 30, 69, 100, 101]
    recipes = ScaffoldOptions(("sst",), checkpoints=(encoder,), quick=True).recipes()
    quick = simulability(recipes)
    assert [name for name, _ in quick.arms] == [
        *("no explanation", "random", "gradient x input", "attention", "attention, last layer", "SMaT")
    ]
    assert {(each.data.train_size, each.seed) for each in quick.arms[0][1]} == {(150, 0), (150, 9)}
    assert isinstance(quick.subject.corpus, SubsampledCorpus)
    assert [recipe.limit for recipe in recipes if isinstance(recipe, Plausibility)] == [60]


def test_normalisers_of_heads_are_arms_of_table_7(encoder: str) -> None:
    both = dict(
        simulability(ScaffoldOptions(("sst",), checkpoints=(encoder,), normalizers=("softmax", "none")).recipes()).arms
    )
    learned = {name: students[0].explanation for name, students in both.items() if name.startswith("SMaT, ")}
    assert {name: each.normalizer for name, each in learned.items() if isinstance(each, LearnedExplanation)} == {
        "SMaT, softmax": "softmax",
        "SMaT, none": "none",
    }
    (one,) = (
        students[0].explanation
        for name, students in simulability(
            ScaffoldOptions(("sst",), checkpoints=(encoder,), normalizers=("entmax15",)).recipes()
        ).arms
        if name == SMAT
    )
    assert one == LearnedExplanation(normalizer="entmax15", lr=2e-3, pilot_lr=0.1)
    with pytest.raises(UserError, match="unknown normalizer 'additive'"):
        ScaffoldOptions(normalizers=("additive",))  # type: ignore[arg-type]


def test_every_corpus_of_the_paper_is_known_and_others_are_refused(encoder: str, tmp_path: Path) -> None:
    assert [corpus.name for corpus in CORPORA.values()] == list(CORPORA)
    assert ScaffoldOptions.default_corpora() == tuple(CORPORA)[:8]
    with pytest.raises(UserError, match="'snail'"):
        ScaffoldOptions(("snail",), checkpoints=(encoder,)).recipes()
    with pytest.raises(UserError, match=r"mlqe-et-en: no file train\.jsonl\.gz"):
        papers.paper_recipes(ScaffoldOptions(("mlqe-et-en",), checkpoints=(encoder,), data_dir=tmp_path))
    with pytest.raises(UserError, match="fashion-mnist, mlqe-ro-en: not in the data folder"):
        papers.paper_recipes(ScaffoldOptions(checkpoints=(encoder,), data_dir=tmp_path))
    found = papers.paper_recipes(ScaffoldOptions(("digits",), checkpoints=(encoder,), data_dir=tmp_path))
    assert {recipe.subject.corpus.name for recipe in found if isinstance(recipe, Simulability)} == {"digits"}


def data(root: Path, *, leaves: bool = True) -> Path:
    """SST with its leaves and films with marks, in small and invented."""
    splits = Sentences(60).read(root)
    for split in SPLITS:
        rows: list[dict[str, object]] = []
        for example in splits[split]:
            text = str(example.parts[0])
            tokens = text.split()
            row: dict[str, object] = {"id": example.uid, "text": text, "label": example.label}
            feelings = [4 if token == "good" else 0 if token == "bad" else 2 for token in tokens]
            rows.append({**row, "tokens": tokens, "token_label5": feelings} if leaves else row)
        _write(root / "sst" / f"{split}.jsonl.gz", rows)
        marked = [
            {"id": f"film-{split}-{n}", "text": f"{WORDS[n % 12]} good {WORDS[n % 7]} film", "label": n % 2}
            for n in range(12)
        ]
        _write(root / "eraser_movies" / f"{split}.jsonl.gz", [{**row, "rationale": [[1]]} for row in marked])
    return root


def _write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def test_leaves_are_visited_only_where_the_copy_has_some_and_no_other_fault_is_passed_over(
    encoder: str, tmp_path: Path
) -> None:
    def trials(root: Path) -> int:
        found = papers.paper_recipes(ScaffoldOptions(("sst",), checkpoints=(encoder,), data_dir=root))
        return sum(isinstance(recipe, Plausibility) for recipe in found)

    assert trials(data(tmp_path / "one")) == 1
    with pytest.warns(UserWarning, match="no tree leaves"):
        assert trials(data(tmp_path / "two", leaves=False)) == 0
    broken = data(tmp_path / "three") / "sst" / "dev.jsonl.gz"
    _write(broken, [{"id": "x", "text": "good film", "label": 1, "tokens": ["good"], "token_label5": [4, 2]}])
    with pytest.raises(UserError, match="'tokens' and 'token_label5' must be lists of the same length"):
        trials(tmp_path / "three")


def area(workspace: Workspace, trial: Plausibility) -> float:
    """SMaT's area from its own scores, text by text; the encoder reads a word as one unit."""
    table = workspace.get(dict(trial.learned_explainers)[SMAT]).table.set_index("uid")
    found = []
    for example in trial.subject.restore(workspace).examples("test"):
        marks = np.array(example.rationale)
        if example.uid in table.index and 0 < marks.sum() < len(marks):
            row = table.loc[example.uid]
            found.append(roc_auc_score(marks, np.array(row["scores"])[np.array(row["scored"], dtype=bool)]))
    return float(np.mean(found))


@pytest.mark.slow
def test_a_small_run_finishes_and_prints_its_results(
    encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaffold, "QUICK_EPOCHS", 3)
    monkeypatch.setenv("HEEDFUL_DATA", str(data(tmp_path / "data")))
    workspace = Workspace(tmp_path / "work")
    options = ScaffoldOptions(
        ("sst", "eraser-movies"),
        checkpoints=(encoder,),
        n_seeds=1,
        student_sizes=(24,),
        limit=10,
        quick=True,
        data_dir=workspace.data_dir,
    )
    recipes = papers.paper_recipes(options)
    outcomes = runner.run(recipes, workspace)
    assert {outcome.error for outcome in outcomes} == {None}
    trial = simulability(recipes)
    summary = workspace.get(trial).summary
    assert set(summary.loc[summary["metric"] == "median", "method"]) == {name for name, _ in trial.arms}
    for marked in (recipe for recipe in recipes if isinstance(recipe, Plausibility)):
        found = workspace.get(marked).summary
        assert value_of(found, "judged") > 0
        assert value_of(found, "auc", SMAT) == pytest.approx(area(workspace, marked))
    (smat,) = dict(trial.arms)[SMAT]
    assert isinstance(smat, SMaT)
    assert workspace.get(smat).tensors["coefficients"].sum().item() == pytest.approx(1.0, abs=1e-6)
