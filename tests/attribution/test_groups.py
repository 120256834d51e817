"""Groups of rows and whole targets: their scores are means, and the derivatives of autograd."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from scipy.stats import ttest_1samp
from test_attribute import SETTINGS, N, rows, trainer
from tiny_models import tiny_model

from farzi_hf.attribution import Attribution, attribute, clusters
from farzi_hf.attribution.groups import Groups, intervals_over_trainings
from farzi_hf.attribution.replay import Replay
from farzi_hf.data import SequenceCollator
from farzi_hf.engine import Direct, unroll

SOURCES = ["b", "a", "b", "a", "c", "b", "a", "b", "a", "b"]


def with_sources(**changes):
    data = rows(N, seed=0).add_column("source", SOURCES)
    return lambda folder: trainer(folder, tiny_model("gpt2").double(), data, **changes)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Attribution:
    of = with_sources()(tmp_path_factory.mktemp("groups"))
    targets = {"first": rows(3, seed=1), "second | *x*": rows(5, seed=2)}
    return attribute(of, targets, groups="source")


def test_a_group_s_score_is_the_mean_over_its_rows(found):
    assert found.group_names == ["b", "a", "c"]
    for group, name in enumerate(found.group_names):
        members = [i for i, source in enumerate(SOURCES) if source == name]
        torch.testing.assert_close(found.group_scores[:, group], found.scores[:, members].mean(1))


def test_scores_of_targets_and_groups_are_the_derivatives_of_autograd(tmp_path):
    """One weight for each group, through the whole training, against the mean loss of a target
    whose tokens are counted here.
    """
    of = with_sources()(tmp_path)
    found = attribute(of, {"target": rows(4, seed=1)}, Direct(), groups=SOURCES)
    replay = Replay.of(of)
    groups = Groups(SOURCES)
    shares = torch.ones(len(groups.names), dtype=torch.float64, requires_grad=True)
    theta = {name: x.detach() for name, x in replay.start.items()}
    theta = unroll(
        replay.loss,
        theta,
        (shares[groups.members],),
        optimizer=replay.optimizer,
        steps=replay.steps,
        adjoint=Direct(),
    )
    batch = SequenceCollator(0)(list(rows(4, seed=1)))
    logits = torch.func.functional_call(replay.learner.model, theta, (batch["input_ids"],)).logits
    labels = batch["labels"][:, 1:]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1][labels != -100], labels[labels != -100])
    torch.testing.assert_close(found.losses, loss.detach()[None], rtol=1e-6, atol=1e-9)
    (slope,) = torch.autograd.grad(loss, shares)
    expected = -slope / groups.sizes
    torch.testing.assert_close(found.group_scores[0], expected, rtol=1e-6, atol=1e-10)


def test_a_target_in_parts_is_the_same(found, tmp_path, monkeypatch):
    monkeypatch.setattr("farzi_hf.attribution.queries._TOKENS_TOGETHER", 7)
    targets = {"first": rows(3, seed=1), "second | *x*": rows(5, seed=2)}
    again = attribute(with_sources()(tmp_path), targets, groups="source")
    torch.testing.assert_close(again.scores, found.scores, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(again.losses, found.losses)


def test_intervals_are_those_of_student_s_t():
    scores = torch.tensor([[1.0, 2.0, 4.0, 7.0, 5.0], [0.0, 3.0, 1.0, 1.0, 2.0]]).double()
    groups = Groups(["x", "x", "y", "x", "y"])
    for query, values in enumerate(scores[:, [0, 1, 3]].numpy()):
        interval = ttest_1samp(values, 0).confidence_interval(0.95)
        np.testing.assert_allclose(groups.intervals(scores)[query, 0], interval)
    means = torch.stack([scores[:, :2], scores[:, 1:3], scores[:, 3:]])
    interval = ttest_1samp(means[:, 1, 0].numpy(), 0).confidence_interval(0.95)
    np.testing.assert_allclose(intervals_over_trainings(means)[1, 0], interval)
    alone = Groups(["x", "y", "y", "y", "y"]).intervals(scores)
    assert alone[:, 0].isnan().all()
    assert alone[:, 1].isfinite().all()


def test_groups_are_saved_shown_and_loaded(found, tmp_path):
    found.save(tmp_path / "scores")
    loaded = Attribution.load(tmp_path / "scores")
    assert loaded.group_names == found.group_names
    assert loaded.queries == ["first", "second | *x*"]
    torch.testing.assert_close(loaded.group_scores, found.group_scores)
    torch.testing.assert_close(loaded.group_intervals, found.group_intervals, equal_nan=True)
    table = pq.read_table(tmp_path / "scores" / "groups.parquet").to_pydict()
    assert table["group"] == ["b", "a", "c"]
    assert table["rows"] == [5, 4, 1]
    assert (tmp_path / "scores" / "groups.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "scores" / "README.md").read_text(encoding="utf-8")
    assert "![groups](groups.png)" in page
    assert "*x*" not in page  # it is escaped
    relative = found.group_scores[0] / found.row_deviations[0]
    for group, name in enumerate(found.group_names):
        assert f"| {name} | {[5, 4, 1][group]} | {relative[group]:+.2f} (" in page


def test_several_trainings_are_pooled(found, tmp_path):
    targets = {"first": rows(3, seed=1), "second | *x*": rows(5, seed=2)}
    other = attribute(with_sources(data_seed=5)(tmp_path), targets, groups="source")
    pooled = Attribution.pooled([found, other])
    torch.testing.assert_close(pooled.scores, (found.scores + other.scores) / 2)
    both = torch.stack([found.group_scores, other.group_scores])
    torch.testing.assert_close(pooled.group_intervals.mean(-1), both.mean(0))
    pooled.save(tmp_path / "pooled")
    loaded = Attribution.load(tmp_path / "pooled")
    torch.testing.assert_close(loaded.group_intervals, pooled.group_intervals)
    assert "intervals over trainings" in (tmp_path / "pooled" / "README.md").read_text()
    with pytest.raises(ValueError, match="of_trainings has 1 attributions; give two or more"):
        Attribution.pooled([found])
    with pytest.raises(ValueError, match="of the same rows, queries and groups"):
        Attribution.pooled([found, Attribution(found.scores, found.losses, ["x"], ["y"])])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("kind", r"groups='kind': the training rows have the columns 'input_ids'.*give one of"),
        (["a"], "groups has 1 entries, but there are 10 training rows; give one for each"),
        ([*"abcdefghi", None], r"groups\[9\] is None; give each row a group"),
    ],
)
def test_bad_groups_are_refused(tmp_path, groups, message):
    with pytest.raises(ValueError, match=message):
        attribute(trainer(tmp_path, **SETTINGS), rows(1, seed=1), groups=groups)


def test_scores_without_groups_have_none(found):
    plain = Attribution(found.scores, found.losses, found.texts, found.queries)
    assert plain.group_names == []
    with pytest.raises(ValueError, match=r"has no groups; give attribute\(…, groups=\)"):
        _ = plain.group_scores


# -- groups by the model's own states --------------------------------------------------------------


def test_rows_that_the_model_reads_alike_are_a_cluster(tmp_path):
    """Rows of low ids and rows of high ones, in turn, and of unequal lengths."""
    draw = np.random.default_rng(0)
    ids = [(draw.integers(1, 4, 4 + i % 3) + 9 * (i % 2)).tolist() for i in range(20)]
    of = trainer(tmp_path, data=Dataset.from_dict({"input_ids": ids}))
    found = clusters(of, 2)
    assert len(set(found[::2])) == len(set(found[1::2])) == 1
    assert found[0] != found[1]
    for name, first in ((found[0], 0), (found[1], 1)):
        assert int(name.removeprefix("like row ")) % 2 == first
    assert clusters(of, 2) == found
    assert set(clusters(of, 1)) == {clusters(of, 1)[0]}
    scores = attribute(of, rows(3, seed=1), groups=found)
    assert scores.group_names == [found[0], found[1]]


def test_there_are_no_more_clusters_than_rows(tmp_path):
    with pytest.raises(ValueError, match="count=11: there are 10 training rows; ask for fewer"):
        clusters(trainer(tmp_path), 11)
    with pytest.raises(ValueError, match="count"):
        clusters(trainer(tmp_path), 0)
