"""No file of the project holds rows of the data of others."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import lzma
import os
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows_of_others import data_of, rows_in

CHECKOUT = Path(__file__).resolve().parent.parent
NAMES = ("FARZI_DATA_DIR", "FARZI_PTB_DIR", "FARZI_ML100K_DIR", "FARZI_MAGAZINE_DIR")
FIGURES = (".png", ".jpg")
"""Files that this test cannot read. `test_a_card_without_rows…` knows those that show rows."""


def data_folders() -> list[Path]:
    """The folders of data that the environment names, or `shared/data` beside the checkout."""
    named = [Path(os.environ[name]) for name in NAMES if name in os.environ]
    beside = [parent / "shared" / "data" for parent in [*CHECKOUT.parents][:2]]
    return named or [folder for folder in beside if folder.is_dir()][:1]


def committed() -> list[Path]:
    """The files of the checkout that git keeps, or would keep."""
    command = ["git", "-C", str(CHECKOUT), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the tests lie in no repository of git")
    paths = [CHECKOUT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.mark.skipif(not data_folders(), reason=f"none of {', '.join(NAMES)} names a folder of data")
def test_no_file_holds_rows_of_the_data():
    files = [path for path in committed() if path.suffix not in FIGURES]
    assert len(files) > 100
    contents = {str(path.relative_to(CHECKOUT)): path.read_bytes() for path in files}
    for folder in data_folders():
        data = data_of(folder)
        rows = {name: rows_in(name, content, *data) for name, content in contents.items()}
        assert {name: shown[:5] for name, shown in rows.items() if shown} == {}


def test_no_card_without_rows_has_a_figure_of_them():
    cards = [path for path in committed() if path.match("model_cards/*/README.md")]
    without = [path for path in cards if "This card prints no rows" in path.read_text("utf-8")]
    assert without
    assert [path for path in without if (path.parent / "plots" / "tokens.png").exists()] == []


# -- the search itself, on data that were invented for it ------------------------------------------

SENTENCE = "seven grey herons watched the flooded orchard until dusk"
"""Nine words, so two runs."""

HISTORY = [17, 4, 31, 8, 25, 12]


@pytest.fixture(scope="module")
def invented(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(f"nothing else of note\n{SENTENCE}\n", encoding="utf-8")
    rows = [f"{user},{item},{time}" for user in range(3) for time, item in enumerate(HISTORY, user)]
    rows += [f"4,{item},0" for item in range(1, 40)]
    lines = "\n".join(["user,item,timestamp", *rows])
    (folder / "bought.csv.gz").write_bytes(gzip.compress(lines.encode()))
    return data_of(folder)


def viewer_of(names: list[str], ids: list[int], inputs: list[list[int]] | None) -> str:
    summary = {
        "tokens": names,
        "likeliest": 1,
        "ids": base64.b64encode(np.array(ids, "<u4").tobytes()).decode(),
        "input_ids": inputs,
    }
    return f'<script type="application/json" id="summary">{json.dumps(summary)}</script>'


def parquet_of(column: list) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"tokens": column}), buffer)
    return buffer.getvalue().to_pybytes()


_WORDS = SENTENCE.split()
_ITEMS = " | ".join(map(str, HISTORY))
_NUMBERS = list(range(len(_WORDS)))
LEAKS = {
    "card.md": f"```text\n{SENTENCE.upper()}\n```",
    "escaped.md": "seven\\ grey \\*herons\\* watched\nthe flooded&nbsp;orchard\nuntil dusk",
    "position.md": "".join(f"| {i} | `{word}` 1.00 | 0 |\n" for i, word in enumerate(_WORDS)),
    "history.md": f"```text\n{_ITEMS}\n```",
    "history_of_positions.md": "".join(f"| {i} | `{item}` |\n" for i, item in enumerate(HISTORY)),
    "words.csv": "\n".join(f"{i},{word},1.0" for i, word in enumerate(_WORDS)),
    "items.tsv": "\n".join(f"{item}\t{i}" for i, item in enumerate(HISTORY)),
    "list.json": json.dumps({"ids": HISTORY, "caf\u00e9": 1}),
    "words.jsonl": "\n".join(json.dumps([word]) for word in _WORDS),
    "page.ipynb": json.dumps({"outputs": [{"text": [SENTENCE + "\n"]}]}),
    "test.py": 'text = "seven grey herons watched"\\\n    " the flooded orchard until dusk"',
    "viewer.html": viewer_of(_WORDS, [0] * 9, [_NUMBERS]),
    "likeliest.html": viewer_of(_WORDS, _NUMBERS, None),
    "figure.svg": "".join(f"<tspan>{word}</tspan>" for word in _WORDS),
    "table.parquet": parquet_of(_WORDS),
    "lists.parquet": parquet_of([HISTORY]),
    "log.txt.gz": gzip.compress(SENTENCE.encode()),
    "log.xz": lzma.compress(SENTENCE.encode()),
    "log.bz2": bz2.compress(_ITEMS.encode()),
}


@pytest.mark.parametrize("name", LEAKS)
def test_rows_are_found_however_they_are_written(name, invented):
    content = LEAKS[name]
    assert rows_in(name, content if isinstance(content, bytes) else content.encode(), *invented)


def test_archives_are_opened(tmp_path, invented):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("inside/log.txt.gz", gzip.compress(SENTENCE.encode()))
    assert rows_in("all.zip", (tmp_path / "all.zip").read_bytes(), *invented)


@pytest.mark.parametrize(
    "text",
    [
        " ".join(_WORDS[:7]),
        " ".join(reversed(_WORDS)),
        " | ".join(map(str, HISTORY[:4])),
        " | ".join(map(str, sorted(HISTORY))),
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
    ],
)
def test_what_is_no_row_is_not_found(text, invented):
    assert rows_in("page.md", text.encode(), *invented) == []


def test_a_file_that_nobody_can_look_into_is_refused(invented):
    with pytest.raises(UnicodeDecodeError):
        rows_in("weights.bin", b"\xff\xfe\x00", *invented)
