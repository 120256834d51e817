"""`attribute`: the replay of a stock Trainer ends at its weights, and scores are what changes of
single rows do.
"""

from __future__ import annotations

import io
import json

import pytest
import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from process_jobs import attributed
from tiny_models import V, arguments, config_of, tiny_model
from torch import Tensor
from tqdm import tqdm
from trainer_runs import run
from transformers import AutoModelForCausalLM, Trainer

from farzi_hf.attribution import Attribution, attribute, scoring
from farzi_hf.attribution.replay import Replay
from farzi_hf.cli import main
from farzi_hf.data import SequenceCollator, word_tokenizer
from farzi_hf.engine import Checkpoint, Direct, GradientGraphs, Reversible, Tape

N = 10


def rows(count: int, seed: int) -> Dataset:
    """Of three to six ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 7, (count,), generator=generator).tolist()
    ids = [torch.randint(1, V, (length,), generator=generator).tolist() for length in lengths]
    return Dataset.from_dict({"input_ids": ids})


SETTINGS = {
    "max_steps": -1,
    "num_train_epochs": 2.5,
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "learning_rate": 2e-2,
    "weight_decay": 0.1,
    "max_grad_norm": 1.0,
    "warmup_steps": 2,
    "lr_scheduler_type": "cosine",
    "adam_epsilon": 1e-3,
    "logging_strategy": "no",
}


def trainer(folder, model=None, data: Dataset | None = None, **changes) -> Trainer:
    args = arguments(folder, **{**SETTINGS, **changes})
    return Trainer(
        tiny_model("gpt2") if model is None else model,
        args,
        SequenceCollator(0),
        data or rows(N, seed=0),
    )


def lora():
    return get_peft_model(
        tiny_model("llama"),
        LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"]),
    )


def frozen():
    model = tiny_model("gpt2")
    model.transformer.wte.weight.requires_grad_(False)
    return model


PEFT = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft 0.21 asks for it

MODELS = {
    **{kind: lambda kind=kind: tiny_model(kind) for kind in ("gpt2", "llama", "sasrec")},
    "lora": lora,
    "frozen": frozen,
}
CHANGES = [
    {},
    {"max_grad_norm": 0.0, "optim": "adamw_torch"},
    {"optim": "sgd", "weight_decay": 0.0, "optim_args": "momentum=0.5", "learning_rate": 0.3},
    {
        "lr_scheduler_type": "linear",
        "dataloader_drop_last": True,
        "data_seed": 7,
        "train_sampling_strategy": "random",
    },
    {
        "gradient_accumulation_steps": 1,
        "max_steps": 5,
        "train_sampling_strategy": "sequential",
        "lr_scheduler_type": "constant_with_warmup",
    },
]


@pytest.mark.parametrize("adjoint", [None, GradientGraphs(), Tape(), Reversible()], ids=str)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_the_bar_counts_to_its_end(tmp_path, monkeypatch, adjoint, accumulated):
    """Graphs that are kept need no gradient on the way back: the bar ended early."""
    bars = []

    class Bar(tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{**kwargs, "disable": False, "file": io.StringIO()})
            bars.append(self)

    monkeypatch.setattr(scoring, "tqdm", Bar)
    short = {"num_train_epochs": 1, "gradient_accumulation_steps": accumulated}
    attribute(trainer(tmp_path, **short), rows(2, seed=1), adjoint=adjoint)
    assert [bar.n for bar in bars] == [bar.total for bar in bars]


@PEFT
@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in MODELS), *(("gpt2", changes) for changes in CHANGES[1:])],
)
def test_the_replay_ends_at_the_weights_of_the_trainer(tmp_path, name, changes):
    of = trainer(tmp_path, MODELS[name](), **changes)
    before = {name: x.detach().clone() for name, x in of.model.named_parameters()}
    found = attribute(of, rows(2, seed=1))
    assert all(torch.equal(x, before[name]) for name, x in of.model.named_parameters()), (
        "nothing has trained yet"
    )
    assert found.scores.shape == (2, N)
    of.train()
    moved = sum(
        (x.detach() - before[name]).square().sum() for name, x in of.model.named_parameters()
    ).sqrt()
    size = sum(
        x.detach().square().sum() for name, x in of.model.named_parameters() if x.requires_grad
    ).sqrt()
    assert found.check(of.model) <= 1e-4 * float(moved / size)
    assert found.facts["steps"] == of.state.global_step


def test_micro_batches_of_a_model_that_takes_its_own_mean(tmp_path):
    """A model that is not told the number of tokens: the mean of the micro-batches' means."""
    of = trainer(tmp_path)
    of.model_accepts_loss_kwargs = False
    found = attribute(of, rows(1, seed=1))
    of.train()
    assert found.check(of.model) <= 1e-5


@pytest.mark.parametrize("adjoint", [None, Tape(), Reversible(), Checkpoint(slots=2)], ids=repr)
def test_every_adjoint_gives_the_derivative_of_autograd(tmp_path, adjoint):
    of = trainer(tmp_path, tiny_model("gpt2").double())
    expected = attribute(of, rows(3, seed=1), Direct())
    assert expected.scores.abs().min() > 1e-6
    found = attribute(of, rows(3, seed=1), adjoint)
    rtol = 1e-5 if isinstance(adjoint, Reversible) else 1e-9
    torch.testing.assert_close(found.scores, expected.scores, rtol=rtol, atol=1e-9)
    torch.testing.assert_close(found.losses, expected.losses)


def test_damping_makes_epsilon_larger_on_the_way_back_alone(tmp_path):
    of = trainer(tmp_path, tiny_model("gpt2").double(), max_grad_norm=0.5)
    exact = attribute(of, rows(3, seed=1))
    found = attribute(of, rows(3, seed=1), damping=2.0)
    expected = Replay.of(of)
    theta = {name: x.detach().requires_grad_() for name, x in expected.start.items()}
    g = torch.cat(
        [
            x.flatten()
            for x in torch.autograd.grad(
                sum(expected.loss(theta, (expected.ones,), 1)), list(theta.values())
            )
        ]
    )
    assert g.norm() > 0.5  # the Trainer clips it
    damped = Replay.of(of, 2.0).optimizer
    assert damped.damping == pytest.approx(2 * 0.5 / int((g != 0).sum()) ** 0.5, rel=1e-5)
    torch.testing.assert_close(found.losses, exact.losses)
    assert (
        torch.corrcoef(torch.stack([found.scores.flatten(), exact.scores.flatten()]))[0, 1] < 0.99
    )
    for adjoint, rtol in (
        (Checkpoint(slots=2), 1e-9),
        (GradientGraphs(), 1e-9),
        (Reversible(), 1e-5),
    ):
        again = attribute(of, rows(3, seed=1), adjoint, damping=2.0)
        torch.testing.assert_close(again.scores, found.scores, rtol=rtol, atol=1e-9)
    with pytest.raises(
        ValueError,
        match=(
            r"adjoint=Direct\(\) cannot follow the reverse rule of optimizer=InnerAdamW; use"
            r" adjoint=Tape"
        ),
    ):
        attribute(of, rows(3, seed=1), Direct(), damping=2.0)


def retrained(replay: Replay, weights: Tensor, query: Dataset) -> Tensor:
    """The losses of queries after a training with these weights."""
    theta = replay.train(weights)
    loader = replay.trainer.get_eval_dataloader(query)
    return torch.stack(
        [
            replay.learner.hard_loss(theta, replay.batch(loader, [i])).detach()
            for i in range(len(query))
        ]
    )


@pytest.mark.parametrize("tied", [True, False])
def test_scores_are_the_changes_that_small_weights_make_and_tell_what_leaving_a_row_out_does(
    tmp_path, tied
):
    """With tied embeddings too: one tensor, one pair of moments."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of("gpt2", tie_word_embeddings=tied)).double()
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    smooth = {"learning_rate": 5e-3, "adam_epsilon": 1e-2}
    of = trainer(tmp_path, model, **smooth)
    queries = rows(2, seed=1)
    h = 1e-5
    found = attribute(of, queries).scores
    replay = Replay.of(of)
    left_out = []
    with_all = retrained(replay, replay.ones, queries)
    for i in range(N):
        change = torch.nn.functional.one_hot(torch.tensor(i), N)
        above, below = (retrained(replay, replay.ones + s * h * change, queries) for s in (1, -1))
        torch.testing.assert_close(found[:, i], -(above - below) / (2 * h), rtol=1e-5, atol=1e-8)
        left_out.append(retrained(replay, replay.ones - change, queries) - with_all)
    real = torch.stack(left_out, 1)
    clear = found.abs() > found.abs().quantile(0.75)
    assert (real.sign() == found.sign())[clear].all()
    slope = (real * found).sum() / found.square().sum()
    assert 0.8 < slope < 1.2
    assert torch.corrcoef(torch.stack([real.flatten(), found.flatten()]))[0, 1] > 0.95


def test_a_model_that_keeps_its_states_is_attributed_again(tmp_path):
    """As a RecurrentGemma does: PyTorch copies no tensor with a graph."""
    model = tiny_model("gpt2")
    layer = model.transformer.h[0]
    layer.register_forward_hook(lambda module, args, output: vars(module).update(kept=output[0]))
    training = trainer(tmp_path, model, num_train_epochs=1)
    first, again = (attribute(training, rows(2, seed=1)).scores for _ in range(2))
    assert layer.kept.grad_fn is not None
    assert torch.equal(first, again)


def test_queries_in_groups_score_as_all_at_once(tmp_path, monkeypatch):
    of = trainer(tmp_path)
    queries = rows(3, seed=1)
    expected = attribute(of, queries)
    monkeypatch.setattr(scoring, "_SHARE", 0.0)  # room for one
    found = attribute(of, queries)
    torch.testing.assert_close(found.scores, expected.scores)
    torch.testing.assert_close(found.losses, expected.losses)


def test_what_was_killed_goes_on_with_the_queries_that_are_missing(tmp_path, monkeypatch):
    of = trainer(tmp_path)
    queries = rows(3, seed=1)
    of_group = scoring.influence
    expected = attribute(of, queries)
    calls = []

    def killed(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return of_group(*args, **kwargs)

    monkeypatch.setattr(scoring, "_KEPT_TOGETHER", 2)
    monkeypatch.setattr(scoring, "influence", killed)
    with pytest.raises(KeyboardInterrupt):
        attribute(of, queries, resume_dir=tmp_path / "parts")
    for calls_in_all in (3, 3):  # the second time, nothing is missing
        found = attribute(of, queries, resume_dir=tmp_path / "parts")
        assert len(calls) == calls_in_all
        torch.testing.assert_close(found.scores, expected.scores)
        torch.testing.assert_close(found.losses, expected.losses)
    for other, asked in ((trainer(tmp_path, learning_rate=0.1), queries), (of, rows(3, seed=2))):
        with pytest.raises(
            ValueError,
            match=r"resume_dir: '.*queries-0-2.safetensors' is of another training or other",
        ):
            attribute(other, asked, resume_dir=tmp_path / "parts")
    of.train()
    assert found.check(of.model) <= 1e-5


def test_scores_of_tokens_add_up_to_those_of_their_rows_and_are_what_small_weights_of_tokens_do(
    tmp_path,
):
    of = trainer(tmp_path, tiny_model("gpt2").double())
    queries = rows(2, seed=1)
    h = 1e-5
    found = attribute(of, queries, per_token=True)
    expected = attribute(of, queries)
    replay = Replay.of(of)
    lengths = [len(ids) for ids in of.train_dataset["input_ids"]]
    assert found.token_scores.shape == (2, N, max(lengths))
    torch.testing.assert_close(found.scores, expected.scores, rtol=1e-9, atol=1e-12)
    ones = torch.ones(N, max(lengths), dtype=torch.float64)
    for row, token in ((0, 1), (3, 2), (N - 1, lengths[-1] - 1)):
        change = torch.zeros_like(ones).index_put(
            (torch.tensor(row), torch.tensor(token)), torch.tensor(h, dtype=ones.dtype)
        )
        above, below = (retrained(replay, ones + s * change, queries) for s in (1, -1))
        torch.testing.assert_close(
            found.token_scores[:, row, token], -(above - below) / (2 * h), rtol=1e-5, atol=1e-9
        )
    for row, length in enumerate(lengths):
        assert not found.token_scores[:, row, 0].any(), "nothing predicts it"
        assert not found.token_scores[:, row, length:].any()
        assert found.token_scores[:, row, 1:length].all()
    best = found.top(1)[0]
    assert [name for name, _ in best.tokens] == [
        f"[{i}]" for i in of.train_dataset["input_ids"][best.row]
    ]
    assert sum(score for _, score in best.tokens) == pytest.approx(best.score)
    found.save(tmp_path / "scores")
    read = Attribution.load(tmp_path / "scores")
    assert torch.equal(read.token_scores, found.token_scores)
    assert read.top() == found.top()
    table = load_dataset(str(tmp_path / "scores"), cache_dir=str(tmp_path / "cache"))["train"]
    assert (
        [len(scores) for scores in table["token_scores"]]
        == [len(names) for names in table["tokens"]]
        == lengths
    )


@pytest.mark.slow
def test_two_processes_share_the_rows_of_a_step(tmp_path):
    """They find what one does that accumulates their batches, also where one has a batch with
    nothing to predict; and one of them saves.
    """
    of = trainer(tmp_path, data=rows(12, seed=0))
    queries = rows(2, seed=1)
    ids = [*of.train_dataset["input_ids"][:8], [1], [2], *of.train_dataset["input_ids"][10:]]
    settings = {
        **SETTINGS,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "train_sampling_strategy": "sequential",
    }
    one = trainer(
        tmp_path,
        data=Dataset.from_dict({"input_ids": ids}),
        **{**settings, "gradient_accumulation_steps": 2},
    )
    expected = attribute(one, queries, per_token=True)
    word_tokenizer(["a b c d e f g"], 20).save_pretrained(tmp_path / "model")
    tiny_model("gpt2").save_pretrained(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("a b c", "c d e f", "f g", "g a b"))
    )
    command = [
        "attribute",
        str(tmp_path / "model"),
        str(tmp_path / "data.jsonl"),
        "--test",
        str(tmp_path / "data.jsonl"),
        "--max_steps",
        "2",
        "--use_cpu",
        "True",
        "--per_device_train_batch_size",
        "2",
        "--disable_tqdm",
        "True",
        "--learning_rate",
        "1e-2",
        "--adam_epsilon",
        "1e-3",
        "--output_dir",
    ]
    (folder := tmp_path / "two").mkdir()
    given = {
        **settings,
        "gradient_accumulation_steps": 1,
        "rows": ids,
        "queries": queries["input_ids"][:],
    }
    codes = run(
        folder,
        {**given, "command": [*command, str(tmp_path / "out-2"), "--check"]},
        processes=2,
        target=attributed,
    )
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("two.*.log")]
    for rank in range(2):
        found = torch.load(folder / f"process-{rank}.pt")
        assert found["world_size"] == 2
        assert found["far"] < 1e-5
        torch.testing.assert_close(found["scores"], expected.token_scores, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(found["losses"], expected.losses)
    command[command.index("--per_device_train_batch_size") + 1] = "4"
    main([*command, str(tmp_path / "out-1")])
    of_one, of_two = (Attribution.load(tmp_path / f"out-{count}").scores for count in (1, 2))
    torch.testing.assert_close(of_two, of_one, rtol=1e-3, atol=1e-6)


class Words:
    """Stands for a tokenizer."""

    def batch_decode(self, ids, skip_special_tokens: bool) -> list[str]:
        return ["|".join(map(str, row)) for row in ids]


def test_rows_with_their_text_are_saved_and_read_again(tmp_path):
    of = trainer(tmp_path / "of")
    of.processing_class = Words()
    found = attribute(of, rows(2, seed=1))
    means = found.scores.mean(0)
    assert [row.row for row in found.top(3)] == means.argsort(descending=True)[:3].tolist()
    assert [row.score for row in found.bottom(N, query=1)] == sorted(found.scores[1].tolist())
    assert found.top(1)[0].text == "|".join(
        map(str, of.train_dataset[int(means.argmax())]["input_ids"])
    )
    found.save(tmp_path / "scores")
    read = Attribution.load(tmp_path / "scores")
    assert torch.equal(read.scores, found.scores)
    assert torch.equal(read.losses, found.losses)
    assert (read.texts, read.queries, read.facts) == (found.texts, found.queries, found.facts)
    assert read.top() == found.top()
    table = load_dataset(str(tmp_path / "scores"), cache_dir=str(tmp_path / "cache"))["train"]
    assert table["score"] == pytest.approx(means.tolist())
    assert table["text"] == found.texts
    assert (
        load_dataset(str(tmp_path / "scores"), "queries", cache_dir=str(tmp_path / "cache"))[
            "train"
        ].num_rows
        == 2
    )
    assert found.plot().axes[0].get_ylabel().startswith("score")
    with pytest.raises(
        FileExistsError, match=r"folder .*scores' holds something already; choose another one"
    ):
        found.save(tmp_path / "scores")
    with pytest.raises(
        FileNotFoundError, match=r"has no scores\.safetensors; give one of Attribution\.save"
    ):
        Attribution.load(tmp_path / "of")
    with pytest.raises(ValueError, match="loaded and holds no parameters"):
        read.check(of.model)


def test_a_model_that_was_trained_in_another_way_is_no_match(tmp_path):
    found = attribute(trainer(tmp_path), rows(1, seed=1))
    other = trainer(tmp_path, learning_rate=0.05)
    other.train()
    with pytest.raises(
        ValueError,
        match=r"model differs from the replayed training by .* than tolerance=0\.01: .* in bf16, a",
    ):
        found.check(other.model)


class Noisy(SequenceCollator):
    def __call__(self, features):
        batch = super().__call__(features)
        return {**batch, "input_ids": torch.randint_like(batch["input_ids"], V)}


def with_dropout():
    return AutoModelForCausalLM.from_config(config_of("gpt2", resid_pdrop=0.1))


def with_prompts():
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return get_peft_model(tiny_model("llama"), config)


def trained(folder) -> Trainer:
    of = trainer(folder, max_steps=1)
    of.train()
    return of


def noisy(folder) -> Trainer:
    of = trainer(folder)
    of.data_collator = Noisy(0)
    return of


def in_stairs(folder) -> Trainer:
    of = trainer(folder)
    of.optimizer = torch.optim.AdamW(of.model.parameters())
    of.lr_scheduler = torch.optim.lr_scheduler.StepLR(of.optimizer, 1)
    return of


BAD = {
    "dropout": (
        lambda folder: trainer(folder, with_dropout()),
        r"its model has dropout; set it to 0 .*\(transformer\.h\.0\.attn",
    ),
    "trained": (trained, "it has trained already; make a new Trainer"),
    "smoothing": (
        lambda folder: trainer(folder, label_smoothing_factor=0.1),
        "its first gradient is not that of the mean cross-entropy",
    ),
    "noise": (noisy, "its first gradient is not .* random rows or collators"),
    "lengths": (
        lambda folder: trainer(folder, train_sampling_strategy="group_by_length"),
        "no seed orders its LengthGroupedSampler",
    ),
    "optimizer": (
        lambda folder: trainer(folder, optim="adafactor"),
        "no optimizer here is its Adafactor; use AdamW",
    ),
    "decay": (
        lambda folder: trainer(folder, optim="sgd"),
        "no optimizer here has the weight_decay of its SGD",
    ),
    "schedule": (in_stairs, "its StepLR is not a function of the step"),
    "no step": (
        lambda folder: trainer(folder, num_train_epochs=0),
        "it takes no step; raise max_steps or num_train_epochs",
    ),
    "no labels": (
        lambda folder: Trainer(
            tiny_model("gpt2"),
            arguments(folder, **SETTINGS),
            train_dataset=Dataset.from_dict({"input_ids": [[1, 2, 3]] * 4}),
        ),
        "its batches have no labels; give it a data_collator that makes them",
    ),
    "prompts": (
        lambda folder: trainer(folder, with_prompts()),
        r"its adapter trains prompt_encoder\.default\.embedding\.weight, which are not in the",
    ),
}
UNDAMPED = {
    "sgd": ({"optim": "sgd", "weight_decay": 0.0}, 1.0),
    "negative": ({}, -1.0),
    "endless": ({}, float("inf")),
}


@PEFT
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_replayed_is_one_clear_error(tmp_path, case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=f"trainer cannot be replayed: {message}"):
        attribute(make(tmp_path), rows(1, seed=1))


@pytest.mark.parametrize("case", UNDAMPED)
def test_what_cannot_be_damped_is_one_clear_error(tmp_path, case):
    changes, damping = UNDAMPED[case]
    with pytest.raises(
        ValueError, match=rf"damping={damping} has to be a number from 0 on, and 0 with SGD"
    ):
        attribute(trainer(tmp_path, **changes), rows(1, seed=1), damping=damping)


def test_queries_that_predict_nothing_and_trainings_that_diverge(tmp_path):
    with pytest.raises(
        ValueError, match=r"test_dataset has 2 rows, nothing to predict in \[1\]; give"
    ):
        attribute(trainer(tmp_path), Dataset.from_dict({"input_ids": [[1, 2, 3], [4]]}))
    with pytest.raises(ValueError, match="test_dataset has 0 rows"):
        attribute(trainer(tmp_path), Dataset.from_dict({"input_ids": []}))
    wild = {
        "optim": "sgd",
        "weight_decay": 0.0,
        "learning_rate": 1e30,
        "max_grad_norm": 0.0,
        "warmup_steps": 0,
    }
    with pytest.raises(
        FloatingPointError, match=r"not finite after 5 steps with optimizer=InnerSGD\("
    ):
        attribute(trainer(tmp_path, **wild), rows(1, seed=1))


def partly_stepped(folder) -> Trainer:
    of = trainer(folder)
    of.optimizer = torch.optim.AdamW(of.model.transformer.h.parameters())
    return of


def unlike_groups(folder) -> Trainer:
    of = trainer(folder)
    names = dict(of.model.named_parameters())
    groups = [
        {"params": [x for name, x in names.items() if ("wte" in name) is of_table]}
        for of_table in (True, False)
    ]
    of.optimizer = torch.optim.AdamW(groups, lr=1e-2)
    of.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
        of.optimizer, [lambda step: 1.0, lambda step: 0.3**step]
    )
    return of


def with_best(folder) -> Trainer:
    of = trainer(folder)
    of.args.load_best_model_at_end = True
    return of


SILENT = {
    "part": (partly_stepped, r"its optimizer leaves out transformer\.wte\.weight"),
    "groups": (unlike_groups, "its LambdaLR is not a function of the step, one for all parameters"),
    "neftune": (lambda folder: trainer(folder, neftune_noise_alpha=20.0), "NEFTune draws noise"),
    "best": (with_best, "it may end with an earlier model"),
    "empty": (
        lambda folder: trainer(
            folder, per_device_train_batch_size=16, dataloader_drop_last=True, max_steps=6
        ),
        "its training set makes no batch",
    ),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_gave_wrong_scores_or_no_end_is_refused(tmp_path, case):
    make, message = SILENT[case]
    with pytest.raises(ValueError, match=f"trainer cannot be replayed: {message}"):
        attribute(make(tmp_path), rows(1, seed=1))


def test_kept_scores_of_a_model_that_trains_otherwise_are_refused(tmp_path):
    attribute(trainer(tmp_path), rows(2, seed=1), resume_dir=tmp_path / "parts")
    for model in (frozen(), AutoModelForCausalLM.from_config(config_of("gpt2", n_head=1))):
        model.load_state_dict(tiny_model("gpt2").state_dict())
        with pytest.raises(ValueError, match="is of another training"):
            attribute(trainer(tmp_path, model), rows(2, seed=1), resume_dir=tmp_path / "parts")


def test_kept_scores_of_other_weights_are_refused(tmp_path):
    attribute(trainer(tmp_path), rows(2, seed=1), resume_dir=tmp_path / "parts")
    model = tiny_model("gpt2")
    with torch.no_grad():
        next(model.parameters()).mul_(1.001)
    with pytest.raises(ValueError, match="is of another training"):
        attribute(trainer(tmp_path, model), rows(2, seed=1), resume_dir=tmp_path / "parts")


def test_damaged_scores_are_not_gone_on_from(tmp_path):
    """A flipped bit was another score, without a word."""
    attribute(trainer(tmp_path), rows(2, seed=1), resume_dir=tmp_path / "parts")
    [part] = (tmp_path / "parts").iterdir()
    content = bytearray(part.read_bytes())
    content[-5] ^= 4
    part.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"resume_dir: '.*queries-0-2.safetensors' is damaged .*; remove it, and"
    ):
        attribute(trainer(tmp_path), rows(2, seed=1), resume_dir=tmp_path / "parts")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_queries_are_not_kept_for_the_trainers_own_evaluations(tmp_path):
    of = trainer(tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True)
    assert [attribute(of, rows(count, seed=count)).scores.shape for count in (2, 3)] == [
        (2, N),
        (3, N),
    ]


@pytest.mark.parametrize("test", ["abc", None, [rows(1, 1), rows(1, 2)], {"a": "abc"}], ids=str)
def test_what_are_no_rows_is_named(tmp_path, test):
    with pytest.raises(ValueError, match=r"^test_dataset has .* for rows; give a data set with"):
        attribute(trainer(tmp_path), test)


def test_ids_that_the_model_does_not_know_are_named(tmp_path):
    test = Dataset.from_dict({"input_ids": [[1, 2], [1, V]]})
    message = rf"has a row with ids from 1 to {V}, but the model knows 0 to {V - 1}; use its token"
    with pytest.raises(ValueError, match=f"^test_dataset {message}"):
        attribute(trainer(tmp_path), test)
    with pytest.raises(ValueError, match=f"^test_dataset {message}"):
        attribute(trainer(tmp_path), {"target": test})


def test_rows_that_the_model_cannot_read_are_named(tmp_path):
    unknown = Dataset.from_dict({"input_ids": [[1, 2, 3], [1, V, 2]] * 2})
    with pytest.raises(ValueError, match=rf"train_dataset has a row with ids from 1 to {V}, but"):
        attribute(trainer(tmp_path, data=unknown), rows(1, seed=1))
    model = AutoModelForCausalLM.from_config(config_of("gpt2", n_positions=8))
    long = Dataset.from_dict({"input_ids": [[1, 2, 3], [1] * 9]})
    message = "has a row of 9 ids, but the model reads 8 at most; cut such rows"
    with pytest.raises(ValueError, match=f"^the trainer's train_dataset {message}"):
        attribute(trainer(tmp_path, model, long), rows(1, seed=1))
    with pytest.raises(ValueError, match=f"^test_dataset {message}"):
        attribute(trainer(tmp_path, model), long)


def test_other_arguments_of_a_wrong_kind_are_named(tmp_path):
    with pytest.raises(ValueError, match="cannot be replayed: it is a str; give a configured"):
        attribute("trainer", rows(1, seed=1))
    with pytest.raises(TypeError, match="adjoint must be an Adjoint or None, got 'tape'; pass"):
        attribute(trainer(tmp_path), rows(1, seed=1), adjoint="tape")
    found = attribute(trainer(tmp_path), rows(2, seed=1))
    for query in (2, -1, 0.5):
        with pytest.raises(ValueError, match=f"^query={query} is none of the 2; give 0 to 1$"):
            found.top(3, query=query)
    for first in (found.top, found.bottom):
        with pytest.raises(ValueError, match=r"^k must be an integer of at least 0, got -1$"):
            first(-1)


def test_a_single_row_has_no_deviation(tmp_path):
    found = attribute(trainer(tmp_path, data=rows(1, seed=0)), rows(2, seed=1), groups=["中"])
    assert found.scores.shape == (2, 1)
    assert bool(found.row_deviations.isnan().all())
    found.save(tmp_path / "saved")
