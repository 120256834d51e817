"""A kind of inputs and a kind of labels that nobody knows but this file: they train, are saved,
loaded, shown and decoded, and every word about them is theirs.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from tiny_artefacts import WORDS, word_tokenizer
from tiny_models import arguments, soft_trainer, tiny_model
from tiny_trainer import tensors, tiny_trainer

from farzi_hf.cli import main
from farzi_hf.common.settings import setting
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.forms import INPUTS, LABELS, Inputs, InputWords, Labels, LabelWords
from farzi_hf.summary.forms.base import Part, Table, normal
from farzi_hf.summary.forms.common_inputs import StoredInputs
from farzi_hf.summary.forms.common_labels import (
    BY_OUTER_STEPS,
    StoredLabels,
    refuse_label_dim,
    refuse_teacher,
)
from farzi_hf.summary.initialization import Start
from farzi_hf.summary.origins import Origin
from farzi_hf.summary.reading import check_product, likeliest_entries
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.store.columns import list_column

INVENTED = Origin(
    "invented", True, "Topics are an invention.", "A trial protects whom it likes. {labels}"
)


@dataclass(frozen=True)
class Mixing(Start):
    """Chances of topics that a seed draws."""

    origin: ClassVar[None] = None

    def fill(self, farzi, dataset, seed, vectors=None) -> None:
        generator = torch.Generator().manual_seed(seed)
        farzi.mixture.data.copy_(torch.randn(farzi.mixture.shape, generator=generator))


class TopicInputs(StoredInputs):
    """`mixture (μ, ξ, k)`, which is learnt, of `topics (k, V)`, which are not."""

    name = "topics"
    result_words = "topic mixtures"
    labels_by_default = "one"
    start = Mixing()
    origin = INVENTED
    browsed = ""
    columns_comment = ""
    table_names = ("mixture",)

    @dataclass(frozen=True)
    class Settings:
        latent_dim: int = setting(16, "d, numbers per synthetic token", least=1)

    @classmethod
    def parts(cls, config):
        axes = ("num_sequences", "sequence_length", "latent_dim")
        return {
            "mixture": Part(axes, is_learnt=True, is_ids=False, begin=normal),
            "topics": Part(("latent_dim", "vocab_size"), False, False, normal),
        }

    def check_numbers(self, tensors, remedy):
        check_product("mixture", "topics", tensors, 1.0, remedy)

    @classmethod
    def words_of_settings(cls, settings):
        return {"inputs": f"mixtures of {settings.latent_dim} topics"}

    def batch(self, tensors, rows):
        return SoftTokens(tensors["mixture"][rows], tensors["topics"])

    def looked_up(self, tensors):
        return None

    def column(self, tensors):
        return tensors["mixture"]

    def knows(self, values):
        return values.is_floating_point() and values.ndim == 2

    @property
    def wanted(self):
        return ", or a mixture (ξ, k)"

    def collated(self, values, shared):
        return {"input_ids": SoftTokens(torch.stack(values), shared["topics"]).probabilities()}

    def decode(self, tensors, rows, names, top_k):
        return likeliest_entries(self.batch(tensors, rows), names, top_k)

    def browsed_ids(self, decoded):
        return None

    def card_cells(self, position, likeliest):
        return {"it mixes": likeliest(position["tokens"], position["probabilities"])}

    def terminal_cells(self, position, likeliest):
        return {"mix": likeliest(position["tokens"], position["probabilities"])}

    def columns(self, contents):
        return {}

    def tables(self, contents):
        def mixtures() -> pa.Table:
            column = {"mixture": list_column(contents.tensors["mixture"])}
            return pa.table(contents.index | column | contents.text)

        return [Table("mixture", "a row a mixture: (ξ, k) chances", mixtures)]

    def torch_code(self):
        return 'M = torch.tensor(mixture[:]["mixture"])\n'

    def words(self, vocabulary):
        return InputWords(
            positions="mixed topics",
            position="A place mixes topics.",
            rows="mixtures of topics",
            short="topic mixtures, some",
            facts={"mixtures": self.config.num_sequences, "kinds of topics": "made for a trial"},
            excerpt="What is mixed most.",
            first_positions="Places that come before others:",
            first_row="Mixture 0",
            numbers=self.numbers_per_position,
            figures=(("topics", self.config.latent_dim),),
            legend="A box is the topic that is mixed in most",
        )


class OneLabel(StoredLabels):
    """`answer (V,)`: one distribution, which every position predicts."""

    name = "one"
    goes_with = (TopicInputs,)
    table_names = ("answer",)
    fields = ()
    defaults = BY_OUTER_STEPS | {"inputs": "topics"}
    by_teachers = False
    are_inputs = False
    row_of_start = "one answer, {inputs}"
    row_without_steps = None

    @classmethod
    def parts(cls, config):
        return {"answer": Part(("vocab_size",), is_learnt=True, is_ids=False, begin=normal)}

    @classmethod
    def check(cls, config):
        refuse_teacher(config)
        refuse_label_dim(config)

    def check_numbers(self, tensors, remedy):
        """Nothing."""

    def batch(self, tensors, rows, inputs):
        return SoftTokens(tensors["answer"].expand(*inputs.shape), None)

    def column(self, tensors, count, length):
        return torch.zeros(count, length, 1)

    def knows(self, row):
        return torch.as_tensor(row.get("labels", ())).shape[-1:] == (1,)

    def collated(self, rows, read, shared):
        size, length, _ = read.shape
        return shared["answer"].softmax(-1).expand(size, length + 1, -1)

    def decode(self, tensors, rows, inputs, names, top_k):
        labels = self.batch(tensors, rows, inputs.batch(tensors, rows))
        decoded = likeliest_entries(labels, names, 1)
        return [[{"label_answer": x["tokens"][0]} for x in sequence] for sequence in decoded]

    def card_cells(self, position, likeliest):
        return {"the answer": position["label_answer"]}

    def terminal_cells(self, position, likeliest):
        return {"answer": position["label_answer"]}

    def tables(self, contents):
        def answers() -> pa.Table:
            return pa.table(
                contents.entries | {"answer": list_column(contents.tensors["answer"][:, None])}
            )

        return [Table("answer", "what all places say", answers)]

    def torch_code(self):
        return 'A = torch.tensor(answer[:]["answer"])\n'

    def commands(self, repo):
        return [f"farzi show {repo}"]

    def words(self, inputs, vocabulary, nbytes):
        return LabelWords(
            tags=("a-trial",),
            title="One answer to whatever is asked by",
            description=f"Here are {inputs.positions}. {inputs.position}",
            browse=" A page draws them.",
            training=None,
            origin="Answers are one.",
            results="A row is a trial.",
            needs="Nobody needs an answer",
            reading="An answer is not a question.",
            size="what an answer takes",
            short_size="bytes of an answer",
            facts={"answers": 1},
            short={"mixes": inputs.short, "answers": "one"},
        )


@pytest.fixture
def trial(monkeypatch):
    """Both kinds are in their tables."""
    monkeypatch.setitem(INPUTS, TopicInputs.name, TopicInputs)
    monkeypatch.setitem(LABELS, OneLabel.name, OneLabel)


def summary(vocabulary=None, **changes) -> FarziData:
    torch.manual_seed(0)
    sizes = {"num_sequences": 4, "sequence_length": 5, "latent_dim": 3, "vocab_size": len(WORDS)}
    config = FarziDataConfig(**{**sizes, "inputs": "topics", "labels": "one", **changes})
    return FarziData(config, vocabulary)


def words_of(farzi: FarziData) -> tuple[InputWords, LabelWords]:
    inputs = farzi.forms.inputs.words(farzi.vocabulary)
    return inputs, farzi.forms.labels.words(inputs, farzi.vocabulary, farzi.nbytes)


@pytest.mark.usefixtures("trial")
def test_it_trains_and_students_learn_from_it(sequences, tokenizer, tmp_path):
    form = {"inputs": "topics", "labels": "one", "concentration": None}
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, max_steps=3, **form)
    before = tensors(trainer)
    topics = trainer.model.topics.clone()
    trainer.train()
    assert all(not torch.equal(x, y) for x, y in zip(before, tensors(trainer), strict=False))
    assert torch.equal(trainer.model.topics, topics)
    assert trainer.evaluate()["eval_perplexity"] > 1
    trainer.save_model()
    loaded = FarziData.from_pretrained(tmp_path)
    assert loaded.fingerprint() == trainer.model.fingerprint()
    recipe = loaded.results.recipe
    assert (recipe["inputs"], recipe["labels"]) == ("topics", "one")


@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize("storage", ["exact", "int8", "coded5"])
def test_it_is_saved_and_loaded(storage, tmp_path):
    farzi = summary(WORDS, storage=storage)
    assert list(farzi.tensors) == ["mixture", "topics", "answer"]
    assert {name for name, _ in farzi.named_parameters()} == {"mixture", "answer"}
    farzi.store_as(storage)
    farzi.save_pretrained(tmp_path)
    loaded = FarziData.from_pretrained(tmp_path)
    assert all(torch.equal(loaded.tensors[name], x) for name, x in farzi.tensors.items())
    assert loaded.decode(2) == farzi.decode(2)
    assert loaded.decode(2)[1][3].keys() == {"tokens", "probabilities", "entropy", "label_answer"}
    tables = {path.parent.name: pq.read_table(path) for path in tmp_path.glob("*/*.parquet")}
    assert tables.keys() == {"mixture", "answer"}
    assert tables["mixture"].column_names == ["index", "mixture", "text"]
    assert tables["answer"].column_names == ["id", "token", "answer"]


@pytest.mark.usefixtures("trial")
def test_the_stock_trainer_trains_on_it_and_evaluates_on_ids(tmp_path):
    farzi = summary()
    rows = [farzi.as_dataset()[i] for i in range(2)]
    batch = farzi.collator()(rows)
    torch.testing.assert_close(batch["input_ids"], farzi(torch.arange(2)).detach())
    expected = farzi.answer.softmax(-1).expand(2, 6, -1)
    torch.testing.assert_close(batch["labels"], expected.detach())
    ids = {"input_ids": [1, 2]}
    assert farzi.collator()([ids])["labels"].tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="rows mix"):
        farzi.collator()([rows[0], ids])
    with pytest.raises(ValueError, match=r"give ids \(L,\), or a mixture \(ξ, k\)"):
        farzi.collator()([{"input_ids": [[1]]}])
    soft_trainer(tiny_model("gpt2", len(WORDS)), farzi, arguments(tmp_path)).train()


OF_OTHERS = re.compile(
    r"soft tokens|softmax|latents|decoder|\bids?\b|teacher|label|drawn|written|synthetic|sequences"
    r"|likeliest|distribution|frequenc",
    re.IGNORECASE,
)
"""Words that would be false here."""


@pytest.mark.usefixtures("trial")
@pytest.mark.parametrize("vocabulary", [None, word_tokenizer()], ids=["no names", "tokens"])
def test_every_word_of_its_card_is_its_own(vocabulary, tmp_path):
    farzi = summary(vocabulary, inner={"lr": 0.1, "steps": 3})
    farzi.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    of_inputs, of_labels = words_of(farzi)
    said = {
        *("- a-trial\n", INVENTED.nature, "A trial protects whom it likes. Answers are one."),
        *(of_labels.title, of_labels.description, of_labels.browse.strip(), of_labels.needs),
        *(of_labels.size, "# a row a mixture: (ξ, k) chances", "# what all places say"),
        *("| mixtures | 4 |", "| kinds of topics | made for a trial |", "| answers | 1 |"),
        'M = torch.tensor(mixture[:]["mixture"])\nA = torch.tensor(answer[:]["answer"])\n',
        "```bash\nfarzi show path/to/this/folder\n```",
    }
    if vocabulary is not None:
        said |= {of_inputs.excerpt, of_inputs.first_positions, of_labels.reading}
        said |= {"| position | it mixes | the answer |"}
    for words in said:
        assert words in card
    # How to train on it is the same for all that students train on.
    rest = re.sub(r"Train on it with the stock `Trainer`.*?```\n.*?```", "", card, flags=re.S)
    rest = re.sub(r"@article\{.*?\n\}", "", rest, flags=re.S)
    assert not OF_OTHERS.findall(rest)


@pytest.mark.usefixtures("trial")
def test_every_word_of_its_page_and_of_farzi_show_is_its_own(tmp_path, capsys):
    farzi = summary(WORDS)
    farzi.save_pretrained(tmp_path / "summary")
    page = (tmp_path / "summary" / "viewer.html").read_text(encoding="utf-8")
    data = json.loads(re.findall(r'id="summary">(.*?)</script>', page)[0])
    assert (data["figures"], data["legend"]) == (
        [["topics", 3]],
        "A box is the topic that is mixed in most",
    )
    assert data["input_ids"] is None
    main(["show", str(tmp_path / "summary"), "--sequences", "1", "--positions", "2"])
    said = capsys.readouterr().out
    for words in (
        "mixes",
        "topic mixtures, some",
        "answers",
        "bytes of an answer",
        "answer",
        "mix",
    ):
        assert words in said
    assert not OF_OTHERS.findall(said.replace("sequence, position", ""))


@pytest.mark.usefixtures("trial")
def test_tables_of_results_and_of_experiments_ask_it():
    assert (
        OneLabel.row_of_start.format(inputs=TopicInputs.result_words)
        == "one answer, topic mixtures"
    )
    with pytest.raises(ValueError, match="labels='one' need inputs of 'topics', got inputs='soft'"):
        FarziDataConfig(labels="one")
    with pytest.raises(ValueError, match=r"inputs must be one of .*'topics', got 'topic'"):
        FarziDataConfig(inputs="topic")


# -- a form that leaves out a word -----------------------------------------------------------------


def left_out(form: type, name: str) -> type:
    """The form without what it says under that name."""
    base = Inputs if issubclass(form, Inputs) else Labels
    return type("Silent", (form,), {name: inspect.getattr_static(base, name)})


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *((TopicInputs, name) for name in sorted(Inputs.__abstractmethods__)),
        *((OneLabel, name) for name in sorted(Labels.__abstractmethods__)),
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
@pytest.mark.usefixtures("trial")
def test_a_form_that_does_not_say_all_about_itself_cannot_be_made(form, name):
    config = summary().config
    form(config)
    with pytest.raises(TypeError, match=rf"abstract.*\b{name}\b"):
        left_out(form, name)(config)


@pytest.mark.parametrize("words", [InputWords, LabelWords])
def test_no_word_has_a_default(words):
    names = [each.name for each in fields(words)]
    for name in names:
        with pytest.raises(TypeError, match=rf"missing 1 required .*'{name}'"):
            words(**dict.fromkeys(set(names) - {name}, ""))


@pytest.mark.usefixtures("trial")
def test_a_table_that_no_form_names_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(OneLabel, "table_names", ())
    with pytest.raises(ValueError, match=r"no place for answer/train.*in table_names"):
        summary().save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


# -- rows that are no sequences of ids -------------------------------------------------------------

TEXTS = ("The cat.", "A cat sat | there.", "the")


class TextInputs(Inputs):
    """Rows of text, in place of positions."""

    name = "texts"
    result_words = "texts"
    labels_by_default = "weights"
    start = Mixing()
    origin = Origin("texts", True, "A sample of texts.", "The rows are those of the data.")
    is_endless = False
    browsed = None
    columns_comment = ""
    table_names = ("rows",)
    sizes = ("num_texts",)
    wanted = ""

    @classmethod
    def parts(cls, config):
        return {}

    @classmethod
    def check(cls, config):
        """Nothing."""

    def check_numbers(self, tensors, remedy):
        """Nothing."""

    @classmethod
    def words_of_settings(cls, settings):
        return {"inputs": "texts"}

    def batch(self, tensors, rows):
        raise ValueError("rows of text are no batch; train on them with their weights")

    def endless(self, tensors, labels, seed, length):
        return None

    def frequencies(self, tensors):
        return None

    def looked_up(self, tensors):
        return None

    def check_ready(self):
        raise ValueError("rows of text are no batch; tokenize them")

    def dataset(self, tensors, labels, num_rows, seed):
        return Dataset.from_dict({"text": TEXTS, "weight": tensors["weights"].tolist()})

    def knows(self, values):
        return False

    def collated(self, values, shared):
        raise ValueError("rows of text are no batch; tokenize them")

    def decode(self, tensors, rows, names, top_k):
        return [[{"text": text}] for text in TEXTS[rows]]

    def text(self, sequence, vocabulary):
        return sequence[0]["text"]

    def browsed_ids(self, decoded):
        return None

    def place(self, sequence, position):
        return {"row": str(sequence)}

    def card_cells(self, position, likeliest):
        return {"text": position["text"]}

    def terminal_cells(self, position, likeliest):
        return {"text": position["text"]}

    def columns(self, contents):
        return {}

    def tables(self, contents):
        rows = {"text": TEXTS, "weight": contents.tensors["weights"].tolist()}
        return [Table("rows", "a text, and its weight", lambda: pa.table(rows))]

    def torch_code(self):
        return ""

    def words(self, vocabulary):
        return InputWords(
            positions="texts",
            position="A row is a text.",
            rows="texts",
            short="texts",
            facts={"rows": len(TEXTS)},
            excerpt="The first texts.",
            first_positions="The first of them, with its weight:",
            first_row="Row 0",
            numbers=0,
            figures=(),
            legend="",
        )


class Weights(OneLabel):
    """`weights (μ,)`: what a row counts."""

    name = "weights"
    goes_with = (TextInputs,)
    table_names = ()

    @classmethod
    def parts(cls, config):
        return {"weights": Part(("num_sequences",), is_learnt=True, is_ids=False, begin=normal)}

    def decode(self, tensors, rows, inputs, names, top_k):
        return [[{"weight": weight}] for weight in tensors["weights"][rows].tolist()]

    def card_cells(self, position, likeliest):
        return {"weight": position["weight"]}

    def terminal_cells(self, position, likeliest):
        return {"weight": f"{position['weight']:.3f}"}

    def tables(self, contents):
        return []

    def torch_code(self):
        return ""

    def words(self, inputs, vocabulary, nbytes):
        words = super().words(inputs, vocabulary, nbytes)
        own = {
            "title": "Weights of rows of",
            "training": "Multiply the loss of a row.",
            "facts": {},
        }
        return LabelWords(**{**asdict(words), **own})


@pytest.fixture
def weighed(monkeypatch) -> FarziData:
    monkeypatch.setitem(INPUTS, TextInputs.name, TextInputs)
    monkeypatch.setitem(LABELS, Weights.name, Weights)
    forms = {"inputs": "texts", "labels": "weights", "num_texts": len(TEXTS)}
    config = FarziDataConfig(3, 5, vocab_size=len(WORDS), **forms)
    return FarziData(config, word_tokenizer(), {"weights": torch.tensor([0.5, 0.0, 2.0])})


def test_rows_of_text_are_decoded_shown_saved_and_loaded(weighed, tmp_path, capsys):
    weighed.save_pretrained(tmp_path / "summary")
    loaded = FarziData.from_pretrained(tmp_path / "summary")
    assert loaded.weights.tolist() == [0.5, 0.0, 2.0]
    assert loaded.config.num_texts == len(TEXTS)
    assert loaded.decode()[2] == [{"text": "the", "weight": 2.0}]
    assert loaded.as_dataset()[0] == {"text": "The cat.", "weight": 0.5}
    rows = pq.read_table(tmp_path / "summary" / "rows" / "train-00000-of-00001.parquet")
    assert rows.to_pydict() == {"text": list(TEXTS), "weight": [0.5, 0.0, 2.0]}
    assert not (tmp_path / "summary" / "viewer.html").exists()
    card = (tmp_path / "summary" / "README.md").read_text(encoding="utf-8")
    code = 'rows = load_dataset("path/to/this/folder", split="train")'
    assert f"# a text, and its weight\n{code}\n" in card
    assert "Multiply the loss of a row." in card
    assert "A cat sat | there." in card
    assert "| 0 | The cat. | 0.5 |" in card
    for absent in ("A page draws them", "viewer.html", "PyTorch alone", "attach_soft_inputs"):
        assert absent not in card
    main(["show", str(tmp_path / "summary"), "--sequences", "2"])
    said = capsys.readouterr().out
    assert re.search(r"row\s*\|\s*text\s*\|\s*weight", said)
    assert re.search(r"1\s*\|\s*A cat sat", said)


def test_what_rows_of_text_cannot_do_is_said(weighed):
    with pytest.raises(ValueError, match="train on them with their weights"):
        weighed(torch.tensor([0]))


def test_a_size_of_rows_of_text_is_checked_and_refused_by_others(weighed):
    with pytest.raises(ValueError, match="num_texts must be an integer of at least 1, got 0"):
        FarziDataConfig(3, 5, inputs="texts", labels="weights", num_texts=0)
    with pytest.raises(ValueError, match=r"num_texts=2 with inputs='soft' .* has none; leave it"):
        FarziDataConfig(num_texts=2)
    other = FarziDataConfig(3, 5, vocab_size=7, inputs="texts", labels="weights", num_texts=9)
    with pytest.raises(ValueError, match=r"has num_texts=3, but args\.num_texts is 9"):
        weighed.config.check_equal(other)
