"""Rules of sequences against plain loops, by the protocol of all recommenders."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farzi_hf.data import load_sample_interactions
from farzi_hf.metrics import ranking_metrics
from farzi_hf.tasks import Recommendation, SequenceRules, counted_items
from farzi_hf.tasks.counted import coded, decoded
from farzi_hf.tasks.counted_items import VOTES, Following, Together
from farzi_hf.tasks.items import rank_metrics

V = 9
HISTORIES = st.lists(
    st.lists(st.integers(1, V - 1), min_size=2, max_size=14), min_size=1, max_size=8
)


def dataset(ids: list[list[int]]) -> Dataset:
    return Dataset.from_dict({"input_ids": ids})


def votes_of(kind, rows: list[list[int]]) -> np.ndarray:
    ids = np.array([item for row in rows for item in row])
    return kind.count(ids, np.array([len(row) for row in rows]), V).toarray()


def rules_of(kind, rows: list[list[int]], decay: float, power: float) -> SequenceRules:
    ids = np.array([item for row in rows for item in row])
    votes = kind.count(ids, np.array([len(row) for row in rows]), V)
    return SequenceRules(kind, votes, np.bincount(ids, minlength=V), decay, power)


@settings(max_examples=40, deadline=None)
@given(HISTORIES)
def test_votes_are_what_loops_count(rows):
    following, together = np.zeros((V, V)), np.zeros((V, V))
    for row in rows:
        for place, item in enumerate(row):
            for distance, later in enumerate(row[place + 1 : place + 11], 1):
                following[item, later] += 2520 // distance
        for one, other in combinations(sorted(set(row)), 2):
            together[one, other] += 1
            together[other, one] += 1
    np.testing.assert_array_equal(votes_of(Following(), rows), following)
    np.testing.assert_array_equal(votes_of(Together(), rows), together)


def test_portions_of_items_are_counted_like_all_at_once(monkeypatch):
    rows = np.random.default_rng(0).integers(1, V, (30, 12)).tolist()
    expected = [votes_of(kind, rows) for kind in VOTES.values()]
    monkeypatch.setattr(counted_items, "_PAIRS", 50)
    for kind, votes in zip(VOTES.values(), expected, strict=True):
        blocks = list(kind.blocks(np.concatenate(rows), np.full(len(rows), 12), V))
        assert len(blocks) > 2
        np.testing.assert_array_equal(votes_of(kind, rows), votes)


def test_of_many_votes_each_item_keeps_its_largest(monkeypatch):
    rows = np.random.default_rng(0).integers(1, V, (30, 12)).tolist()
    all_votes = votes_of(Following(), rows)
    monkeypatch.setattr(counted_items, "_FEWEST", 3)
    monkeypatch.setattr(counted_items, "_VOTES", 1)
    kept = votes_of(Following(), rows)
    popularity = np.bincount(np.concatenate(rows), minlength=V)
    for votes, its in zip(all_votes, kept, strict=True):
        strongest = np.sort(votes / np.sqrt(np.maximum(popularity, 1)))[-3:]
        chosen = np.flatnonzero(its)
        assert len(chosen) == min(3, np.count_nonzero(votes))
        np.testing.assert_array_equal(its[chosen], votes[chosen])
        np.testing.assert_allclose(
            np.sort(votes[chosen] / np.sqrt(popularity[chosen])), strongest[3 - len(chosen) :]
        )


def test_neighbours_of_long_histories_are_counted_among_the_latest_items():
    rows = [[1, 2, *[3] * 20, 4, 5], [1, 2]]
    assert votes_of(Together(), rows)[1, 5] == 1
    short = votes_of(Together(most=200), rows)
    assert short[1, 5] == 0
    assert short[4, 5] == short[1, 2] == 1


@settings(max_examples=40, deadline=None)
@given(HISTORIES, HISTORIES, st.sampled_from([0.5, 1.0]), st.sampled_from([0.0, 0.5]))
def test_scores_are_sums_of_votes(rows, histories, decay, power):
    for kind in VOTES.values():
        model = rules_of(kind, rows, decay, power)
        votes = votes_of(kind, rows)
        popularity = np.bincount([item for row in rows for item in row], minlength=V)
        for history, scores in zip(histories, model.scores(histories), strict=True):
            expected = np.zeros(V)
            for place, item in enumerate(history[::-1][: kind.last]):
                for other in range(V):
                    share = max(1, popularity[item]) * max(1, popularity[other])
                    expected[other] += decay**place * votes[item, other] / share**power
            np.testing.assert_allclose(scores[1:], expected[1:], rtol=1e-5, atol=1e-9)
            assert scores[0] == -math.inf


def test_popularity_ranks_what_has_no_vote():
    model = rules_of(Following(), [[1, 2], [3, 4, 4, 4], [5, 5]], 1.0, 0.0)
    assert model.recommend([[1]], top_k=8) == [[2, 4, 5, 3, 6, 7, 8]]
    assert model.recommend([[]], top_k=3) == [[4, 5, 1]]  # of equals, the lower id
    assert model.recommend([[8, 1], [3]], top_k=2) == [[2, 4], [4, 5]]


def test_statistics_follow_the_protocol_of_all_recommenders():
    """Items that the user has had are no candidates, but the target is; the padding never is."""
    generator = np.random.default_rng(3)
    train = generator.integers(1, V, (30, 6)).tolist()
    histories = generator.integers(1, V, (40, 5)).tolist()
    model = rules_of(Following(), train, 0.8, 0.3)
    seen = [history[:-1] for history in histories]
    targets = [history[-1] for history in histories]
    expected = ranking_metrics(model.scores(seen), targets, ks=(2,), seen=seen)
    found = model.statistics(dataset(histories))
    assert rank_metrics(found, ks=(2,)) == pytest.approx(expected)


def test_kind_and_settings_are_chosen_on_validation():
    interactions = load_sample_interactions(200)
    splits = interactions.strong_generalization_split(seed=0)
    size = len(interactions.vocabulary)
    candidates = list(SequenceRules.candidates(splits["train"], size, splits["validation"]))
    assert [model.kind_of_votes.name for model in candidates] == ["following", "together"]
    best = SequenceRules.fit(splits["train"], size, splits["validation"])
    assert best.error == min(model.error for model in candidates)
    assert best.error == np.log(best.statistics(splits["validation"])[:, 0]).mean()
    one = SequenceRules.fit(splits["train"], size, splits["validation"], kinds=["together"])
    assert one.choice.startswith("what the same users had; decay ")
    task = Recommendation(interactions.vocabulary)
    rows = task.count(splits["train"], splits["validation"], splits["test"], size)
    assert [row.method for row in rows] == [
        "popularity",
        "item bigram",
        "rules of sequences, counted",
    ]
    assert all(row.seconds >= 0 for row in rows)
    assert rows[-1].nbytes == best.nbytes
    with pytest.raises(ValueError, match=r"kinds=\['no'\]: \['no'\] are none of"):
        SequenceRules.fit(splits["train"], size, splits["validation"], kinds=["no"])


def test_ids_outside_the_catalogue_are_refused():
    model = rules_of(Following(), [[1, 2]], 1.0, 0.0)
    with pytest.raises(ValueError, match="histories hold ids from 1 to 9, outside 0 … 8"):
        model.scores([[1, 9]])
    with pytest.raises(ValueError, match="holds id 9"):
        model.statistics(dataset([[1, 9]]))


@settings(max_examples=30, deadline=None)
@given(HISTORIES, st.sampled_from(list(VOTES.values())))
@example([[1, 1]], Together())  # nobody votes
def test_saved_rules_rank_the_same(rows, kind):
    model = rules_of(kind, rows, 0.8, 0.3)
    sizes = SequenceRules.sizes(model.settings())
    arrays = {name: decoded(coded(x), sizes[name], name) for name, x in model.arrays().items()}
    loaded = SequenceRules.restored(model.settings(), arrays)
    np.testing.assert_array_equal(loaded.scores(rows), model.scores(rows))
    assert loaded.choice == model.choice


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("items", lambda x: x + V),
        ("items", lambda x: x[::-1].copy()),
        ("partners", lambda x: x + 1),
    ],
)
def test_damaged_votes_are_refused(name, change):
    model = rules_of(Following(), [[1, 2, 3], [4, 2, 1]], 1.0, 0.0)
    arrays = {key: np.asarray(x).copy() for key, x in model.arrays().items()}
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match="partners and items do not fit each other"):
        SequenceRules.restored(model.settings(), arrays)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"votes": "all"}, "votes='all' is none of"),
        ({"decay": "1"}, "decay='1' is not a number"),
        ({"power": math.nan}, "power=nan is not between 0 and 4"),
        ({"decay": 2}, "decay=2 is not between 0 and 1"),
        ({"pairs": -1}, "pairs must be an integer of at least 0"),
    ],
)
def test_settings_of_no_rules_are_refused(wrong, message):
    settings = {"vocab_size": 5, "votes": "following", "pairs": 3, "decay": 1.0, "power": 0.0}
    with pytest.raises(ValueError, match=message):
        SequenceRules.sizes({**settings, **wrong})
