"""Language models by `load`, `explain`, `checkpoint` and the command: label words and next tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from typer.testing import CliRunner

import heedful
from heedful.attributions.attention import first_token_shares
from heedful.attributions.controls import Random
from heedful.catalogue import METHODS
from heedful.cli import app
from heedful.data.table import Table
from heedful.explainer import Explainer
from heedful.models.tiny_networks import tiny_config
from heedful.seeding import temporary_seed
from heedful.store.recipe import canonical_json, dump_compact_json
from heedful.store.workspace import Workspace
from heedful.testing import check_method
from heedful.training.checkpoint import checkpoint
from heedful.trials.adversarial_attention import AdversarialAttention
from heedful.trials.agreement import Agreement
from heedful.trials.faithfulness import Faithfulness
from heedful.trials.permutation import Permutation
from heedful.types import Batch, Example, UserError
from tests.language_models import LABELS, PROMPT, bert_tokenizer, gpt2, gpt2_tokenizer, masked_bert, save

TEXT = "the film is very fine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("models") / "gpt2", gpt2(), gpt2_tokenizer())


@pytest.fixture(scope="module")
def masked_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(tmp_path_factory.mktemp("models") / "bert", masked_bert(), bert_tokenizer())


@pytest.fixture(scope="module")
def opened(folder: str) -> Explainer:
    return heedful.load(folder, prompt=PROMPT, labels=LABELS)


def next_token(text: str) -> torch.Tensor:
    """Log-probabilities of the token that follows a text, by a bare call of the library."""
    with torch.no_grad():
        logits: torch.Tensor = gpt2()(**gpt2_tokenizer()(text, return_tensors="pt")).logits
    return logits[0, -1].log_softmax(-1)


def causal_network(config: PreTrainedConfig, implementation: str | None = None) -> PreTrainedModel:
    made: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        copy.deepcopy(config), attn_implementation=implementation
    )
    nn.Module.train(made, mode=False)
    return made


@pytest.mark.parametrize("padding", [None, -1])
@pytest.mark.parametrize("kind", ["gpt_neox", "llama"])
def test_a_model_whose_texts_end_with_token_0_and_that_has_no_padding_is_read(kind: str, padding: int | None) -> None:
    # As in the configurations of Pythia and SmolLM; the first Llama has padding -1.
    config = tiny_config(kind)
    config.vocab_size, config.eos_token_id, config.bos_token_id = len(gpt2_tokenizer()), 0, 0
    config.pad_token_id = padding
    with temporary_seed(0):
        network = causal_network(config)
    explainer, tokenizer = heedful.load((network, gpt2_tokenizer()), prompt=PROMPT, labels=LABELS), gpt2_tokenizer()
    texts = (f"the film <|endoftext|> {TEXT}", "fine")
    with torch.no_grad():
        found = explainer.model(explainer.tokenizer([Example(text, (text,)) for text in texts])).logits
        for text, row in zip(texts, found, strict=True):
            scores = network(**tokenizer(PROMPT.replace("{text}", text), return_tensors="pt")).logits[0, -1]
            expected = scores.log_softmax(-1)[tokenizer.convert_tokens_to_ids(["Ġbad", "Ġgood"])]
            torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("alibi", [True, False])
def test_a_model_whose_eager_attention_differs_from_the_one_it_is_set_to_says_so(*, alibi: bool) -> None:
    config, tokenizer = tiny_config("falcon"), gpt2_tokenizer()
    config.vocab_size, config.alibi = len(tokenizer), alibi
    with temporary_seed(0):
        network = causal_network(config, "sdpa")
    eager = causal_network(config, "eager")
    eager.load_state_dict(network.state_dict())
    explanation = heedful.load((network, tokenizer), prompt=PROMPT, labels=LABELS).explain(TEXT, methods="random")
    scores = {}
    with torch.no_grad():
        for name, each in {"sdpa": network, "eager": eager}.items():
            logits = each(**tokenizer(PROMPT.replace("{text}", TEXT), return_tensors="pt")).logits[0, -1]
            scores[name] = logits[tokenizer.convert_tokens_to_ids(["Ġbad", "Ġgood"])].softmax(-1).max().item()
    assert explanation.probability == pytest.approx(scores["eager"], abs=1e-5)
    assert (abs(scores["sdpa"] - scores["eager"]) > 1e-3) == alibi
    assert any("'sdpa'" in note for note in explanation.notes) == alibi


DATED = "{{ strftime_now('%H:%M:%S.%f') }} {{ messages[0].content }}\n"


@pytest.mark.slow
def test_a_chat_template_with_the_date_is_part_of_the_recipe(tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer()
    tokenizer.chat_template = DATED
    source, table = save(tmp_path / "dated", gpt2(), tokenizer), tmp_path / "table.csv"
    table.write_text("text,label\nfine,positive\nbad,negative\n")
    labels = {"negative": "bad", "positive": "good"}
    first, second = (checkpoint(source, Table(str(table)), prompt="{text}", labels=labels, chat=True) for _ in range(2))
    # One recipe, one prompt, whenever and by whichever process it is read; another prompt, another recipe.
    assert canonical_json(first, tmp_path) != canonical_json(second, tmp_path)
    for recipe in (first, second):
        restored = {recipe.tokenization.restore({"answers": 0}).definition() for _ in range(2)}
        assert len(restored) == 1
    plain = checkpoint(source, Table(str(table)), prompt=PROMPT, labels=LABELS)
    assert "rendered" not in dump_compact_json(canonical_json(plain, tmp_path))


def test_the_next_word_is_asked_about_in_the_same_chat(tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer()
    tokenizer.chat_template = DATED
    opened = heedful.load((gpt2(), tokenizer), chat=True)
    tokens = list(opened.explain("fine", target="good", methods="random").tokens)
    assert opened.next_words is not None
    assert tokens == opened.tokenizer.unit_texts(opened.tokenizer([Example("0", ("fine",))]))[0]


def test_a_folder_and_objects_in_memory_read_as_the_library_does(opened: Explainer) -> None:
    ids = [gpt2_tokenizer().convert_tokens_to_ids(token) for token in ("Ġbad", "Ġgood")]
    expected = next_token(PROMPT.replace("{text}", TEXT))[ids]
    memory = heedful.load((gpt2(), gpt2_tokenizer()), prompt=PROMPT, labels=LABELS)
    for explainer in (opened, memory):
        found = explainer.model(explainer.tokenizer([Example("0", (TEXT,))])).logits[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        shown = explainer.explain(TEXT, methods="integrated-gradients")
        assert shown.probability == pytest.approx(float(expected.softmax(0).max()), rel=1e-4)
        assert shown.predicted == tuple(LABELS)[int(expected.argmax())]
    assert opened.digest != heedful.load(opened.source, prompt=f"{PROMPT} A", labels=LABELS).digest


def test_the_next_token_is_explained_against_another(folder: str) -> None:
    explainer = heedful.load(folder)
    scores = next_token(TEXT)
    good, dull = (gpt2_tokenizer().convert_tokens_to_ids(token) for token in ("Ġgood", "Ġdull"))
    shown = explainer.explain(TEXT, target=" good", contrast=" dull", methods=["occlusion", "integrated-gradients"])
    assert (shown.target, shown.contrast) == (" good", " dull")
    assert shown.probability == pytest.approx(float(scores[good].exp()), rel=1e-4)
    assert shown.predicted_probability == pytest.approx(float(scores.max().exp()), rel=1e-4)
    # The score of a word is what the difference of log-probabilities loses without it.
    blank = next_token("the film is very<|endoftext|>")
    loss = float((scores[good] - scores[dull]) - (blank[good] - blank[dull]))
    assert shown.rows[0].word_scores[-1] == pytest.approx(loss, abs=1e-4)
    alone = explainer.explain(TEXT, target=" good", methods="occlusion")
    assert alone.rows[0].word_scores[-1] == pytest.approx(float(scores[good].exp() - blank[good].exp()), abs=1e-6)
    assert explainer.explain(TEXT).target == gpt2_tokenizer().decode([int(scores.argmax())])
    # A word of several tokens has its joint probability.
    several = explainer.explain(TEXT, target=" very good", methods="occlusion").probability
    very = gpt2_tokenizer().convert_tokens_to_ids("Ġvery")
    assert several == pytest.approx(float((scores[very] + next_token(f"{TEXT} very")[good]).exp()), rel=1e-3)


def test_a_masked_model_is_read_at_its_mask(masked_folder: str) -> None:
    opened = heedful.load(masked_folder, prompt="{text} . [MASK]", labels={"n": "bad", "p": "good"})
    assert opened.model.deciding_row == "mask"
    with torch.no_grad():
        logits = (
            masked_bert()(**bert_tokenizer()(f"{TEXT} . [MASK]", return_tensors="pt")).logits[0, -2].log_softmax(-1)
        )
    expected = logits[bert_tokenizer().convert_tokens_to_ids(["bad", "good"])]
    torch.testing.assert_close(opened.model(opened.tokenizer([Example("0", (TEXT,))])).logits[0], expected)


def test_a_masked_prompt_with_two_texts_is_one_sequence(masked_folder: str) -> None:
    opened = heedful.load(masked_folder, prompt="{text} . [MASK] {second}", labels={"n": "bad", "p": "good"})
    inputs = bert_tokenizer()("the film . [MASK] is fine", return_tensors="pt")
    place = int((inputs["input_ids"][0] == bert_tokenizer().mask_token_id).nonzero())
    with torch.no_grad():
        logits = masked_bert()(**inputs).logits[0, place].log_softmax(-1)
    expected = logits[bert_tokenizer().convert_tokens_to_ids(["bad", "good"])]
    batch = opened.tokenizer([Example("0", ("the film", "is fine"))])
    assert batch.segments.any(), "units still belong to the first or the second text"
    torch.testing.assert_close(opened.model(batch).logits[0], expected)
    torch.testing.assert_close(opened.model.read_logits(batch)[0], expected)


def test_methods_obey_their_laws_on_a_language_model(opened: Explainer) -> None:
    batch = opened.tokenizer([Example("a", ("the film is dull",)), Example("b", ("fine",)), Example("c", (TEXT,))])
    for name in ("rollout", "relevance", "leave-one-out", "input-x-gradient"):
        report = check_method(METHODS[name](), {"language model": (opened.model, batch)})
        assert report, f"{name}: {report}"


def test_attention_sinks_are_reported(opened: Explainer) -> None:
    attention = torch.tensor([[[[[1.0, 0.0], [0.75, 0.25]]]]])
    batch = Batch(("0",), torch.tensor([[3, 4]]), *(torch.ones(1, 2).bool(), *(torch.zeros(1, 2).long(),) * 2))
    assert first_token_shares(attention, batch).tolist() == [0.875]
    shown = opened.explain(TEXT, methods="raw-attention")
    with torch.no_grad():
        trace = opened.model(opened.tokenizer([Example("0", (TEXT,))]))
    assert shown.first_token_share == pytest.approx(float(trace.attention[..., 0].mean()), rel=1e-5)
    assert shown.to_record()["first_token_share"] == shown.first_token_share
    assert any("first token" in note for note in shown.notes)


def test_trials_take_a_language_model(folder: str, tmp_path: Path) -> None:
    rows = [
        f"{text},{label}" for label in LABELS for text in (TEXT, "the film is dull", "very fine film", "bad film is")
    ]
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n" + "\n".join(rows * 2) + "\n")
    subject = checkpoint(folder, Table(str(path)), prompt=PROMPT, labels=LABELS)
    workspace = Workspace(tmp_path / "workspace")
    for trial in (
        Permutation(subject, permutations=3),
        Faithfulness(subject, (METHODS["raw-attention"](), Random())),
        Agreement(subject, (METHODS["raw-attention"](), METHODS["gradient"]())),
        AdversarialAttention(subject),
    ):
        assert len(workspace.get(trial).summary)
    assert workspace.get(subject).notes["about"]["encoder"] == "gpt2"  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    "make",
    [
        lambda gpt, bert: heedful.load(bert),
        lambda gpt, bert: heedful.load(bert, prompt=PROMPT, labels=LABELS),
        lambda gpt, bert: heedful.load(gpt, prompt="{text} [MASK]", labels=LABELS),
        lambda gpt, bert: heedful.load(gpt, prompt=PROMPT, labels={"a": " good"}),
        lambda gpt, bert: heedful.load(gpt, labels=LABELS, class_names=("a", "b")),
        lambda gpt, bert: heedful.load(heedful.load(gpt), labels=LABELS),
        lambda gpt, bert: heedful.load(gpt, prompt="the " * 70 + "{text}", labels=LABELS),
        lambda gpt, bert: heedful.load(gpt).explain(TEXT, contrast=" good"),
        lambda gpt, bert: heedful.load(gpt).explain(TEXT, target=3),
        lambda gpt, bert: heedful.load(gpt).explain(TEXT, target=" good", contrast=" good"),
        lambda gpt, bert: heedful.load(gpt).recipe(Table("no.csv")),
        lambda gpt, bert: checkpoint(gpt, Table("no.csv"), prompt=PROMPT),
        lambda gpt, bert: checkpoint(gpt, Table("no.csv"), class_names=("a", "b"), labels=LABELS),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    make: Callable[[str, str], object], folder: str, masked_folder: str
) -> None:
    with pytest.raises(UserError) as refused:
        make(folder, masked_folder)
    assert "\n" not in str(refused.value)


def test_the_command_takes_prompt_and_label_words(folder: str) -> None:
    asked = ["explain", folder, TEXT, "--method", "raw-attention", "--json", "-"]
    labels = ["--label", "negative= bad", "--label", "positive= good"]
    done = CliRunner().invoke(app, [*asked, "--prompt", r"Review: {text}\nSentiment:", *labels])
    assert done.exit_code == 0, done.output
    assert '"first_token_share": 0.' in done.stdout
    assert CliRunner().invoke(app, [*asked, "--target", " good", "--contrast", " bad"]).exit_code == 0
    for wrong in (["--prompt", "no field", *labels], ["--label", "nothing"], ["--chat", *labels]):
        assert CliRunner().invoke(app, [*asked, *wrong]).exit_code == 2


def test_network_and_tokenizer_stay_as_they_are_even_when_a_call_fails() -> None:
    network, tokenizer = gpt2().train(), gpt2_tokenizer()

    def state() -> tuple[object, ...]:
        return (
            [(name, value.sum().item()) for name, value in network.state_dict().items()],
            [(part.training, len(part._forward_hooks), len(part._forward_pre_hooks)) for part in network.modules()],
            (network.config._attn_implementation, network.config.to_dict(), str(network.generation_config)),
            (tokenizer.padding_side, tokenizer.pad_token, tokenizer.backend_tokenizer.to_str()),
            torch.get_rng_state().tolist(),
        )

    def fail(*_: object) -> None:
        raise RuntimeError("half-way")

    before = state()
    opened = heedful.load((network, tokenizer), prompt=PROMPT, labels={"a": " very good", "b": " bad"})
    opened.explain(TEXT, methods=["lime", "rollout"])
    heedful.load((network, tokenizer)).explain(TEXT, target=" good", contrast=" bad")
    assert state() == before
    next(iter(opened.model.modules())).register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="half-way"):
        opened.explain(TEXT, methods="rollout")
    assert state() == before
