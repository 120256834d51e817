"""The figures of a summary over bytes and over tokens: rows that are measured once, and those of
other tables.
"""

from __future__ import annotations

import csv
import os

import pytest
import torch

pytest.importorskip("matplotlib")
import carried
import packing

from farzi_hf import FarziData

HEAD = "method,perplexity,sentence_perplexity,accuracy,perplexity_interval,bytes,steps,students\n"
OLDER = f"""{HEAD}Farzi [9×8],40.5,41,0.2,"[39.0, 42.0]",777,4,2
full data,30.5,31,0.3,"[29.0, 32.0]",8000,4,2
"random, same bytes",50.5,51,0.2,"[49.0, 52.0]",800,4,2
"random, same bytes, stopped early",50.5,51,0.2,"[49.0, 52.0]",800,2,2
head (longest),1e9,1e9,0.0,"[1e9, 2e9]",50,4,2
unigram,90,91,0.1,"[88, 92]",8000,,
interpolated bigram,20,21,0.3,"[19, 22]",8000,,
"""


@pytest.mark.slow
@pytest.mark.usefixtures("small_data")
def test_students_by_steps_and_rows_by_bytes(carried_summary, tmp_path):
    (tmp_path / "older.csv").write_text(OLDER, encoding="utf-8")
    card = tmp_path / "card"
    argv = [
        str(carried_summary),
        "--steps",
        "2",
        "5",
        "--num_students",
        "2",
        "--card_dir",
        str(card),
        "--tables",
        *2 * [str(tmp_path / "older.csv")],
    ]
    carried.main(argv)
    farzi = FarziData.from_pretrained(carried_summary)
    data = farzi.results.metrics["data_bytes"]
    rows = list(csv.DictReader((card / "table.csv").read_text(encoding="utf-8").splitlines()))
    by_steps = [
        (row["method"], row["steps"], row["tokens"], row["students"])
        for row in rows
        if row["tokens"]
    ]
    methods = (
        f"students of the summary, {farzi.nbytes:,} bytes",
        f"students of all real data, {data:,} bytes",
    )
    assert by_steps == [
        (method, steps, tokens, "2")
        for method in methods
        for steps, tokens in (("2", "160"), ("5", "400"))
    ]
    # Ids of an older table had more bits: all data had 8,000 bytes there.
    by_bytes = {row["curve"]: int(row["bytes"]) for row in rows if row["curve"]}
    assert by_bytes == {
        "students of a packed teacher, T = 4": farzi.nbytes,
        "the packed teacher itself": farzi.nbytes,
        "all real data, T = 4": data,
        "all real data, T = 12": data,
        "counted bigram": data,
        "counted n-grams": data,
        "distilled summary, T = 4": 777,
        "so many bytes of real data, T = 4": round(800 * data / 8000),
    }
    assert (
        sum(row["curve"] == "counted bigram" for row in rows) == 2
    )  # of both tables, as they differ; each once
    assert all(
        (card / name).stat().st_size > 1000
        for name in (carried.BYTES, carried.TOKENS, "table.md", "table.json")
    )
    times = {path: os.stat(path).st_mtime_ns for path in card.glob("[01]_*.json")}
    assert len(times) == 4
    carried.main(argv)
    assert {path: os.stat(path).st_mtime_ns for path in times} == times


@pytest.mark.usefixtures("small_data")
def test_files_of_others_stay(carried_summary, tmp_path):
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "table.md").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match="choose another folder"):
        carried.main([str(carried_summary), "--card_dir", str(tmp_path / "card")])
    assert (tmp_path / "card" / "table.md").read_text(encoding="utf-8") == "mine"


@pytest.mark.slow
@pytest.mark.usefixtures("small_data")
def test_a_teacher_is_packed_in_each_way_once(carried_summary, tmp_path):
    """Its largest matrix is that of the tokens: 16 numbers a row, in 8 or 16 parts."""
    FarziData.from_pretrained(carried_summary).teacher.save_pretrained(tmp_path / "teacher")
    argv = [
        str(carried_summary),
        "--teacher",
        str(tmp_path / "teacher"),
        "--steps",
        "3",
        "--card_dir",
        str(tmp_path / "card"),
    ]
    packing.main(argv)
    rows = {
        row["method"]: row
        for row in csv.DictReader((tmp_path / "card" / "table.csv").read_text("utf-8").splitlines())
    }
    size = {method: int(row["bytes"]) for method, row in rows.items()}
    assert {row["curve"] for row in rows.values()} == {"", *packing.WAYS}
    assert (
        size["coded2, penalty 0.6"]
        < size["coded5, penalty 0.15"]
        < size["int6, rounded"]
        < size["not packed"]
    )
    assert size["8 product codes a row"] < size["16 product codes a row"]
    assert all(
        (tmp_path / "card" / name).stat().st_size > 1000 for name in (packing.FIGURE, "table.json")
    )
    packing.main(argv)
    FarziData.from_pretrained(carried_summary).teacher.save_pretrained(tmp_path / "other")
    packing.main(
        [*argv[:3], str(tmp_path / "other"), *argv[3:5], "--card_dir", str(tmp_path / "two")]
    )
    rows = list(csv.DictReader((tmp_path / "two" / "table.csv").read_text("utf-8").splitlines()))
    assert {row["method"] for row in rows} == {f"{method}, gpt2 16" for method in size}


def test_product_codes_are_the_nearest_vectors():
    matrix = torch.tensor([[0.0, 0.0, 5.0, 5.0], [0.0, 0.1, -5.0, -5.0], [9.0, 9.0, 5.0, 5.1]])
    vectors, codes = packing.product_codes(matrix, 2)
    rows = torch.cat([part[code] for part, code in zip(vectors, codes, strict=True)], dim=1)
    assert torch.equal(rows, matrix)  # as many vectors as rows
    assert codes.shape == (2, 3)
