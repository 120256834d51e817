"""Interactions from every kind of file, in miniature; the split, the windows; and the real counts where the data are at hand."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from own_rows import EXPECTED, ROWS, lines, lists

from farzi_hf.data import DataUnavailableError, Interactions, load_interactions, load_sample_interactions
from farzi_hf.data.readers import SOURCES


def netflix(rows: list[tuple[int, int, int]]) -> str:
    """Sorted by movie, as the prize's files are; timestamps become days."""
    text = ""
    for movie in sorted({i for _, i, _ in rows}):
        text += f"{movie}:\n" + lines("{u},3,2005-01-0{t}", [(u, i, t + 1) for u, i, t in rows if i == movie])
    return text


FILES = {
    "ml-100k": {"u.data": lines("{u}\t{i}\t3\t{t}")},
    "ml-1m": {"ratings.dat": lines("{u}::{i}::3::{t}")},
    "magazine": {"Magazine_Subscriptions.csv": lines("{u},{i},5.0,{t}")},
    "netflix": {"combined_data_1.txt": netflix([r for r in ROWS if r[1] < 30]),
                "combined_data_2.txt": netflix([r for r in ROWS if r[1] >= 30])},
}  # fmt: skip


@pytest.fixture(params=FILES)
def name(request) -> str:
    return request.param


@pytest.fixture
def folder(name, tmp_path) -> Path:
    for file, text in FILES[name].items():
        (tmp_path / file).write_text(text)
    return tmp_path


def test_a_users_items_by_time_then_row_numbered_and_filtered(name, folder):
    interactions = load_interactions(name, folder)
    expected = EXPECTED
    if name == "netflix":  # its rows are sorted by movie: that is their order where the day is the same
        expected = [EXPECTED[0], [1, 1, 2, 3]]
    assert lists(interactions) == expected
    assert (interactions.num_items, interactions.item_titles) == (4, None)
    assert interactions.vocabulary == ["<pad>", "10", "20", "30", "40"]
    assert len(load_interactions(name, folder, min_interactions=2).sequences) == 3
    assert load_interactions(name, folder, min_interactions=4).num_items == 3


def test_titles_are_read_where_they_are(tmp_path):
    cases = {
        "ml-100k": ("u.item", "{i}|Caf\xe9 {i} (1995)|01-Jan-1995||http"),
        "ml-1m": ("movies.dat", "{i}::Caf\xe9 {i} (1995)::Drama"),
        "netflix": ("movie_titles.csv", "{i},1995,Caf\xe9 {i} (1995)"),
    }
    for name, (file, form) in cases.items():
        for data, text in FILES[name].items():
            (tmp_path / data).write_text(text)
        rows = [(0, 20, 0), (0, 30, 0), (0, 99, 0)]
        form = form.replace("Caf", "\x85Caf")  # Latin-1 knows no end of a line there
        (tmp_path / file).write_bytes(lines(form, rows).encode("latin-1"))
        titles = ["<pad>", "10", "\x85Caf\xe9 20 (1995)", "\x85Caf\xe9 30 (1995)", "40"]
        assert load_interactions(name, tmp_path).item_titles == titles


def test_titles_cut_short_are_an_error(tmp_path):
    (tmp_path / "u.data").write_text(FILES["ml-100k"]["u.data"])
    (tmp_path / "u.item").write_text("10|Ten|x\n20")
    with pytest.raises(ValueError, match=r"u.item has a line without id or title .*cut short"):
        load_interactions("ml-100k", tmp_path)


def test_a_title_of_netflix_may_hold_commas(tmp_path):
    (tmp_path / "combined_data_1.txt").write_text(netflix([(1, 2, t) for t in range(3)]))
    (tmp_path / "movie_titles.csv").write_text("1,NULL,Other\n2,2003,Cut, Print\n")
    assert load_interactions("netflix", tmp_path).item_titles == ["<pad>", "Cut, Print"]


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


def test_users_are_users_where_the_first_has_a_negative_id(tmp_path):
    (tmp_path / "Magazine_Subscriptions.csv").write_text(lines("-{u},{i},5.0,{t}"))
    assert lists(load_interactions("magazine", tmp_path)) == EXPECTED[::-1]  # −7 comes before −5


@pytest.mark.parametrize(
    "form", ["u{u},i{i},5.0,{t}", "{u},B0{i},5.0,{t}", "A{u},A{i},5.0,{t}", "A{u},b-{i},5.0,{t}", "{u}.0,{i},5.0,{t}"]
)
def test_columns_that_do_not_say_which_holds_the_users_are_refused(tmp_path, form):
    (tmp_path / "Magazine_Subscriptions.csv").write_text(lines(form))
    with pytest.raises(
        ValueError, match=r"Magazine_Subscriptions.csv does not say which column holds the users.*first line"
    ):
        load_interactions("magazine", tmp_path)


def test_one_odd_id_is_enough_to_refuse_a_file(tmp_path):
    (tmp_path / "Magazine_Subscriptions.csv").write_text(lines("B0{i},A{u},5.0,{t}") + "B099,#oc-R1,5.0,3\n")
    with pytest.raises(ValueError, match="does not say which column holds the users"):
        load_interactions("magazine", tmp_path)


def test_ids_that_differ_only_in_leading_zeros_stay_apart(tmp_path):
    path = tmp_path / "Magazine_Subscriptions.csv"
    path.write_text(NUMBERED.replace("7,20,", "7,020,"))
    interactions = load_interactions("magazine", path)
    assert interactions.item_ids == ["020", "10", "20", "30", "40"]
    path.write_text(NUMBERED + "007,10,5.0,1\n" * 3)
    assert len(load_interactions("magazine", path).sequences) == 3


@pytest.mark.parametrize(("name", "form"), [("ml-100k", "{u}\t{i}\t3\t{t}"), ("ml-1m", "{u}::{i}::3::{t}")])
@pytest.mark.parametrize("bad", ["007", "0x7", "7.0", " 7", '"7"', "99999999999999999999"])
def test_an_id_of_movielens_that_is_no_plain_integer_is_refused(tmp_path, name, form, bad):
    (file,) = FILES[name]
    (tmp_path / file).write_text(lines(form) + lines(form, [(bad, 10, 3)]))
    message = rf"{file}: user '{bad}' in row 9 \(counted from 0\) is no integer"
    with pytest.raises(ValueError, match=message):
        load_interactions(name, tmp_path)


def test_one_movielens_is_not_read_as_the_other(tmp_path):
    (tmp_path / "ratings.dat").write_text(FILES["ml-100k"]["u.data"])
    with pytest.raises(ValueError, match=r"ratings\.dat does not hold lines"):
        load_interactions("ml-1m", tmp_path)


def test_a_file_that_is_there_twice_is_refused(name, tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        for file, text in FILES[name].items():
            (tmp_path / folder / file).write_text(text)
    with pytest.raises(
        ValueError, match=r"data_dir=.* holds .* 2 times \(.*first, .*second\): pass one of these folders"
    ):
        load_interactions(name, tmp_path)
    assert lists(load_interactions(name, tmp_path / "first"))


# -- what is wrong with a file ---------------------------------------------------------------------------------------


def test_a_last_line_without_its_end_is_a_line(name, folder):
    before = lists(load_interactions(name, folder))
    for file in FILES[name]:
        (folder / file).write_text(FILES[name][file].rstrip("\n"))
    assert lists(load_interactions(name, folder)) == before


def test_a_file_cut_short_within_a_line_is_an_error(name, folder):
    file, text = next(iter(FILES[name].items()))
    (folder / file).write_text(text[: text.rindex("\n", 0, -1) + 2])
    with pytest.raises(ValueError, match=rf"{file} does not hold lines of user.* cut short"):
        load_interactions(name, folder)


def test_a_file_with_a_column_missing_is_an_error(name, folder):
    for file in FILES[name]:
        (folder / file).write_text("1:\n7,3\n5,2\n" if name == "netflix" else "7\n5\n")
    with pytest.raises(ValueError, match="cut short or another file"):
        load_interactions(name, folder)


@pytest.mark.parametrize("text", ["", "\r"])
def test_an_empty_file_is_an_error(name, folder, text):
    for file in FILES[name]:
        (folder / file).write_text(text, newline="")
    with pytest.raises(ValueError, match=r"cut short|does not begin with"):
        load_interactions(name, folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("5,3,2005-01-01\n", "does not begin with a line such as '1:'"), ("1:\n5,3,\n", "has no date, or one outside"), ("1:\n", "cut short"),
     ("1:\n5,3,2005-01-01\n2", "cut short or another file"), ("01:\n5,3,2005-01-01\n", "does not begin with"),
     ("1:\n5,3,2005-01-01\n17771:\n5,3,2005-01-01\n", "has movie 17771, the prize's are 1 … 17770"),
     ("1:\n5,3,2005-01-01\n05,3,2005-01-01\n", "a line up to movie 1 that is no user,"), ("1:\n0x5,3,2005-01-01\n", "that is no user,rating,date"),
     ("1:\n-5,3,2005-01-01\n", "that is no user,rating,date"), ("1:\n2147483647,3,2005-01-01\n", "has user 2147483647, the prize's are"),
     ("1:\n5,3,2105-01-01\n", "or one outside 1880"), ("1:\n\n5,3,2005-01-01\n", "that is no user,rating,date"),
     ("1:\n5,3,2005-01-01\r6,3,2005-01-01\n", "that is no user,rating,date")],
)  # fmt: skip
def test_what_is_none_of_netflixs_files(tmp_path, text, message):
    (tmp_path / "combined_data_1.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_interactions("netflix", tmp_path)


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


def test_a_filter_that_leaves_nobody_is_an_error(name, folder):
    with pytest.raises(ValueError, match="min_interactions=5 leaves no user: the most active one has 4"):
        load_interactions(name, folder, min_interactions=5)


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


_MEASURE = """
import resource, sys
from farzi_hf.data import load_interactions
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
interactions = load_interactions("netflix", sys.argv[1])
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sum(map(len, interactions.sequences)))
"""


@pytest.mark.slow
def test_netflix_of_a_hundred_million_rows_would_stay_within_4_gib(tmp_path):
    """Eight million rows, from which the growth per row is told."""
    rows, generator = 8_000_000, random.Random(0)
    days = [f"200{y}-{m:02}-{d:02}" for y in range(6) for m in range(1, 13) for d in range(1, 29)]
    with (tmp_path / "combined_data_1.txt").open("w") as file:
        for movie in range(1, 81):
            users = 1 + np.random.default_rng(movie).choice(480_000, rows // 80, replace=False)
            day = generator.choices(days, k=len(users))
            file.write(f"{movie}:\n" + "".join(f"{u},3,{d}\n" for u, d in zip(users.tolist(), day, strict=True)))
    run = subprocess.run([sys.executable, "-c", _MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    before, after, kept = map(int, run.stdout.split())
    assert kept > 0.99 * rows
    scale = 1 if sys.platform == "darwin" else 1024
    fixed = (
        64 * 2**20 * 6 + 480_000 * 150
    )  # a block of text with its table, and an object per user: these do not grow with rows
    per_row = ((after - before) * scale - fixed) / rows
    assert before * scale + fixed + 100_480_507 * per_row < 4 * 2**30, f"{per_row} bytes per row"
