"""Interactions from every kind of file, in miniature; the split, the windows; and the real counts where the data are at hand."""

from __future__ import annotations

import hashlib
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from own_rows import EXPECTED, ROWS, lines, lists

from farzi_hf.data import DataUnavailableError, Interactions, load_interactions, load_sample_interactions
from farzi_hf.data.readers import SOURCES

FILES = {
    "ml-100k": ("u.data", "{u}\t{i}\t3\t{t}"),
    "ml-1m": ("ratings.dat", "{u}::{i}::3::{t}"),
    "magazine": ("Magazine_Subscriptions.csv", "{u},{i},5.0,{t}"),
}  # fmt: skip
"""By name: the file, and the form of its lines."""


@pytest.fixture(params=FILES)
def name(request) -> str:
    return request.param


@pytest.fixture
def path(name, tmp_path) -> Path:
    file, form = FILES[name]
    (tmp_path / file).write_text(lines(form))
    return tmp_path / file


def test_a_users_items_by_time_then_row_numbered_and_filtered(name, path):
    interactions = load_interactions(name, path.parent)
    assert lists(interactions) == EXPECTED
    assert (interactions.num_items, interactions.item_titles) == (4, None)
    assert interactions.vocabulary == ["<pad>", "10", "20", "30", "40"]
    assert len(load_interactions(name, path.parent, min_interactions=2).sequences) == 3
    assert load_interactions(name, path.parent, min_interactions=4).num_items == 3
    with pytest.raises(ValueError, match="min_interactions=5 leaves no user: the most active one has 4"):
        load_interactions(name, path.parent, min_interactions=5)


@pytest.mark.parametrize(
    ("name", "file", "form"),
    [("ml-100k", "u.item", "{i}|\x85Caf\xe9 {i} (1995)|01-Jan-1995||http"), ("ml-1m", "movies.dat", "{i}::\x85Caf\xe9 {i} (1995)::Drama")],
)  # fmt: skip
def test_titles_are_read_where_they_are(path, name, file, form):
    rows = [(0, 20, 0), (0, 30, 0), (0, 99, 0)]
    path.with_name(file).write_bytes(lines(form, rows).encode("latin-1"))  # which knows no end of a line in \x85
    titles = ["<pad>", "10", "\x85Caf\xe9 20 (1995)", "\x85Caf\xe9 30 (1995)", "40"]
    assert load_interactions(name, path).item_titles == titles


def test_titles_cut_short_are_an_error(tmp_path):
    (tmp_path / "u.data").write_text(lines(FILES["ml-100k"][1]))
    (tmp_path / "u.item").write_text("10|Ten|x\n20")
    with pytest.raises(ValueError, match=r"u.item has a line without id or title .*cut short"):
        load_interactions("ml-100k", tmp_path)


def test_amazons_own_file_has_the_item_first_and_strings_for_ids(tmp_path):
    path = tmp_path / "Magazine_Subscriptions.csv"
    path.write_text(lines("B0{i},A{u},5.0,{t}"))
    assert lists(load_interactions("magazine", tmp_path)) == EXPECTED
    path.write_text("timestamp,user,rating,item\n" + lines("{t},A{u},5.0,B0{i}"))
    assert lists(load_interactions("magazine", path)) == EXPECTED


def test_a_data_set_with_the_three_columns():
    users, items, times = zip(*ROWS, strict=True)
    columns = {"user": [f"u{u}" for u in users], "item": items, "timestamp": [t / 2 for t in times], "rating": [1] * 9}
    assert lists(load_interactions(Dataset.from_dict(columns))) == EXPECTED
    assert load_interactions(Dataset.from_dict(columns)).item_ids == [10, 20, 30, 40]


NUMBERED = lines("{u},{i},5.0,{t}")


@pytest.mark.parametrize(
    "text",
    ["\ufeff" + NUMBERED, "\n\r\n" + NUMBERED, NUMBERED.replace("\n", "\r\n"), lines('"{u}","{i}","5.0","{t}"'), lines('"{u}",{i},5.0,{t}'),
     '\ufeff\n"timestamp","item","user"\n' + lines("{t},{i},{u}")],
    ids=["byte order mark", "empty lines", "carriage returns", "all quoted", "users quoted", "header"],
)  # fmt: skip
def test_users_are_users_however_a_numbered_file_starts(tmp_path, text):
    (tmp_path / "Magazine_Subscriptions.csv").write_text(text, newline="")
    interactions = load_interactions("magazine", tmp_path)
    assert lists(interactions) == EXPECTED
    assert interactions.item_ids == [10, 20, 30, 40]


@pytest.mark.parametrize(
    "text",
    [*map(lines, ("u{u},i{i},5.0,{t}", "{u},B0{i},5.0,{t}", "A{u},A{i},5.0,{t}", "A{u},b-{i},5.0,{t}", "{u}.0,{i},5.0,{t}")),
     lines("B0{i},A{u},5.0,{t}") + "B099,#oc-R1,5.0,3\n"],
)  # fmt: skip
def test_columns_that_do_not_say_which_holds_the_users_are_refused(tmp_path, text):
    (tmp_path / "Magazine_Subscriptions.csv").write_text(text)
    message = r"Magazine_Subscriptions.csv does not say which column holds the users.*first line"
    with pytest.raises(ValueError, match=message):
        load_interactions("magazine", tmp_path)


def test_ids_that_differ_only_in_leading_zeros_stay_apart(tmp_path):
    path = tmp_path / "Magazine_Subscriptions.csv"
    path.write_text(NUMBERED.replace("7,20,", "7,020,"))
    interactions = load_interactions("magazine", path)
    assert interactions.item_ids == ["020", "10", "20", "30", "40"]
    path.write_text(NUMBERED + "007,10,5.0,1\n" * 3)
    assert len(load_interactions("magazine", path).sequences) == 3


@pytest.mark.parametrize("name", ["ml-100k", "ml-1m"])
@pytest.mark.parametrize("bad", ["007", "0x7", "7.0", " 7", '"7"', "99999999999999999999"])
def test_an_id_of_movielens_that_is_no_plain_integer_is_refused(path, name, bad):
    path.write_text(lines(FILES[name][1]) + lines(FILES[name][1], [(bad, 10, 3)]))
    message = rf"{path.name}: user '{bad}' in row 9 \(counted from 0\) is no integer"
    with pytest.raises(ValueError, match=message):
        load_interactions(name, path)


def test_one_movielens_is_not_read_as_the_other(tmp_path):
    (tmp_path / "ratings.dat").write_text(lines(FILES["ml-100k"][1]))
    with pytest.raises(ValueError, match=r"ratings\.dat does not hold lines"):
        load_interactions("ml-1m", tmp_path)


def test_a_file_that_is_there_twice_is_refused(name, path):
    for folder in ("first", "second"):
        path.with_name(folder).mkdir()
        path.with_name(folder).joinpath(path.name).write_bytes(path.read_bytes())
    path.unlink()
    message = r"data_dir=.* holds .* 2 times \(.*first, .*second\): pass one of these folders"
    with pytest.raises(ValueError, match=message):
        load_interactions(name, path.parent)
    assert lists(load_interactions(name, path.with_name("first"))) == EXPECTED


# -- what is wrong with a file ---------------------------------------------------------------------------------------


def test_a_last_line_without_its_end_is_a_line(name, path):
    path.write_text(path.read_text().rstrip("\n"))
    assert lists(load_interactions(name, path)) == EXPECTED


@pytest.mark.parametrize("cut", [lambda text: text[: text.rindex("\n", 0, -1) + 2], lambda text: "7\n5\n", lambda text: "", lambda text: "\r"],
                         ids=["within a line", "a column missing", "empty", "an end of a line"])  # fmt: skip
def test_a_file_cut_short_is_an_error(name, path, cut):
    path.write_text(cut(path.read_text()), newline="")
    with pytest.raises(ValueError, match=rf"{path.name} (does not hold lines of user.*|holds no .*)cut short"):
        load_interactions(name, path)


def test_empty_fields_are_an_error(tmp_path):
    (tmp_path / "u.data").write_text("1\t2\t3\t4\n1\t\t3\t4\n")
    with pytest.raises(ValueError, match="column 'item' has 1 empty values in 2 rows"):
        load_interactions("ml-100k", tmp_path)


def test_missing_columns_of_a_data_set_are_named():
    with pytest.raises(ValueError, match=r"has columns \['user', 'movie'\], but no item, timestamp: rename"):
        load_interactions(Dataset.from_dict({"user": [1], "movie": [2]}))


def test_a_folder_without_the_files_names_them_and_where_they_are(name, tmp_path):
    with pytest.raises(ValueError, match=r"data_dir=.* lacks .*https://"):
        load_interactions(name, tmp_path)


def test_without_folder_and_network_the_error_has_the_address(name, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError

    monkeypatch.setattr("farzi_hf.data.readers.DownloadManager.download_and_extract", fail)
    with pytest.raises(DataUnavailableError, match=r"https://.* pass data_dir"):
        load_interactions(name)


def test_an_unknown_name_lists_the_known_ones(monkeypatch):
    def fail(*args, **kwargs):
        raise FileNotFoundError("nothing there")

    monkeypatch.setattr("farzi_hf.data.readers.load_dataset", fail)
    with pytest.raises(DataUnavailableError, match=f"'ml-10k' is none of {', '.join(SOURCES)}"):
        load_interactions("ml-10k")


# -- split and windows -----------------------------------------------------------------------------------------------


def test_the_split_is_of_users_80_10_10_disjoint_and_seeded():
    sequences = [np.array([user + 1] * 3) for user in range(57)]
    interactions = Interactions(sequences, 57)
    first, again, other = (interactions.strong_generalization_split(seed) for seed in (0, 0, 1))
    assert [len(first[name]) for name in ("train", "validation", "test")] == [47, 5, 5]
    users = [row[0] for split in first.values() for row in split["input_ids"]]
    assert sorted(users) == list(range(1, 58))
    assert all(first[name]["input_ids"] == again[name]["input_ids"] for name in first)
    assert first["test"]["input_ids"] != other["test"]["input_ids"]
    with pytest.raises(ValueError, match="there are 9 users"):
        Interactions(sequences[:9], 57).strong_generalization_split(0)


def test_sample_interactions_have_an_order_that_popularity_does_not_know():
    interactions, again = load_sample_interactions(300), load_sample_interactions(300)
    assert lists(interactions) == lists(again)
    shown = repr([interactions.item_titles, lists(interactions)])
    assert (
        hashlib.sha256(shown.encode()).hexdigest()[:16] == "4fdca3e03a84df2f"
    )  # other viewers would change every figure of the demo
    assert len(interactions.item_titles) == interactions.num_items + 1
    assert all(len(set(row)) == len(row) >= 5 for row in lists(interactions))
    pairs = [pair for row in lists(interactions) for pair in pairwise(row)]
    assert np.mean([following == previous + 1 for previous, following in pairs]) > 0.4
    assert max(np.bincount(np.concatenate(interactions.sequences))) < 0.05 * len(pairs)


# -- the real thing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variable", "counts"),
    [
        ("ml-100k", "FARZI_ML100K_DIR", (943, 1682, 100_000, 20)),
        ("ml-1m", "FARZI_ML1M_DIR", (6040, 3706, 1_000_209, 20)),
        ("magazine", "FARZI_MAGAZINE_DIR", (3092, 1305, 12_689, 3)),
    ],
)
def test_counts_of_the_real_data(name, variable, counts):
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder with {name}")
    interactions = load_interactions(name, os.environ[variable])
    lengths = [len(sequence) for sequence in interactions.sequences]
    assert (len(lengths), interactions.num_items, sum(lengths), min(lengths)) == counts
