"""Every Python block of the README and of docs/ runs as printed, as a newcomer would run it;
commands and links exist.
"""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import HfArgumentParser

from farzi_hf import FarziConfig
from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.report import RunSettings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = 130
"""Lines that the README may have: a screen and a half."""
WIDTH = 88
"""Columns of code in a page: more of them scroll."""

PROGRAMS = ("accelerate", "farzi", "make", "pip", "python", "torchrun")


def _parse_config(argv: list[str]) -> None:
    parse_arguments(
        (RunSettings, FarziConfig), ROOT / "recipes" / "configs" / "ptb_50x50.yaml", argv
    )


def _parse_finetune(argv: list[str]) -> None:
    import finetune

    HfArgumentParser(finetune.FinetuneArguments).parse_args_into_dataclasses(
        argv, look_for_args_file=False
    )


RECIPES = {"ptb.py": _parse_config, "recsys.py": _parse_config, "finetune.py": _parse_finetune}

RUN_PAGES = """
import os, sys
from pathlib import Path

for path in map(Path, sys.argv[1:]):
    folder = Path(path.stem)
    folder.mkdir()
    os.chdir(folder)
    print(f"== {path.stem}", flush=True)
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), {"__name__": "__main__"})
    os.chdir("..")
"""
"""Runs each page in a folder and a namespace of its own, and all of them in one process: importing
takes most of the time.
"""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


@pytest.mark.slow
def test_blocks_run_as_printed(tmp_path):
    pages = []
    for page in PAGES:
        if code := blocks(page, "python"):
            pages.append(tmp_path / f"{page.stem}.py")
            pages[-1].write_text("\n".join(code), encoding="utf-8")
    assert {"README", "engine", "recommendation", "artefact"} <= {page.stem for page in pages}
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", RUN_PAGES, *map(str, pages)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    assert not re.findall(
        r".*(?:[Ww]arn|loss_type|pin_memory).*", run.stderr
    )  # a first minute without them
    outputs = dict(part.split("\n", 1) for part in run.stdout.split("== ")[1:])
    assert set(outputs) == {page.stem for page in pages}
    assert re.search(r"^\{'loss': .*'epoch'", outputs["README"], re.M)  # on the way
    # of the distillation's students, and of the stock Trainer's
    assert outputs["README"].count("'eval_perplexity'") == 2
    assert outputs["recommendation"].count("'eval_hr@10'") == 2
    gradients = re.findall(
        r"^(?:Direct|Tape|Checkpoint)\(.*(tensor\(.*\))$", outputs["engine"], re.M
    )
    assert len(gradients) == 3
    assert len(set(gradients)) == 1  # as the page says
    for name in ("farzi.safetensors", "viewer.html"):
        assert (tmp_path / "README" / "out" / "summary" / name).exists()
        assert (tmp_path / "recommendation" / "items" / "summary" / name).exists()


def commands() -> list[list[str]]:
    """The words of each command in a block or in a line of text, without comments and what stands
    for more.
    """
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    lines = [
        line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()
    ]
    lines += [
        code
        for text in texts
        for code in re.findall(rf"`((?:{'|'.join(PROGRAMS)}) [^`\n]+)`", text)
    ]
    found = [[word for word in shlex.split(line, comments=True) if word != "…"] for line in lines]
    return [words for words in found if words]


def test_commands_are_known():
    """Scripts and configs exist, and every option of a recipe is one that it has."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    checked = set()
    for words in commands():
        program, *rest = words
        assert program in PROGRAMS
        missing = [
            word
            for word in rest
            if word.startswith("recipes/") and "NAME" not in word and not (ROOT / word).exists()
        ]
        assert not missing
        if program == "make":
            assert rest[0] in targets
        if program == "farzi":
            assert rest[0] in (*COMMANDS, "COMMAND")
        script = next(
            (Path(word).name for word in rest if re.fullmatch(r"recipes/\w+\.py", word)), None
        )
        if script in RECIPES:
            arguments = rest[rest.index(f"recipes/{script}") + 1 :]
            RECIPES[script](
                [str(ROOT / word) if word.startswith("recipes/") else word for word in arguments]
            )
        checked |= {program, script}
    assert {"make", "farzi", *RECIPES} <= checked


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_hour_goes_as_printed(tmp_path):
    """Each command of the walk-through, one after the other, with less time for the trials."""
    said = ""
    for line in [
        line
        for block in blocks(ROOT / "docs" / "first_hour.md", "bash")
        for line in block.splitlines()
    ]:
        words = shlex.split(line.replace("--minutes 10", "--minutes 1 --num_students 1"))
        program = {
            "farzi": [sys.executable, "-c", "from farzi_hf.cli import main; main()"],
            "python": [sys.executable],
        }[words[0]]
        run = subprocess.run([*program, *words[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert run.returncode == 0, f"{line}: {run.stderr[-2000:]}"
        said += run.stdout
    assert "Verdict: " in said
    assert {"docs.jsonl", "farzi-docs", "student", "llama", "judged"} == {
        path.name for path in tmp_path.iterdir()
    }


def test_links_lead_somewhere():
    missing = []
    for page in (*PAGES, *sorted((ROOT / "model_cards").rglob("README.md"))):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            if link.startswith("http"):
                continue
            target = (page.parent / path) if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                missing.append(f"{page.name}: {link}")
    assert not missing


def test_cards_without_the_rivals_of_today_say_so():
    """They were compared with a counted bigram, and with all data in one way of training."""
    wrong = []
    for table in sorted((ROOT / "model_cards").glob("*/table.csv")):
        with table.open(encoding="utf-8") as file:
            methods = [row.get("method", "") for row in csv.DictReader(file)]
        if not any(method.startswith("full data, long") for method in methods):
            continue
        has_counted = any(
            method.endswith(", counted") and "bigram" not in method for method in methods
        )
        has_seconds = any(re.fullmatch(r"full data, (same seconds|[\d.]+ s)", m) for m in methods)
        is_older = not (has_counted and has_seconds)
        for page in (table.with_name("table.md"), table.with_name("README.md")):
            if page.exists() and ("Older yardstick" in page.read_text("utf-8")) != is_older:
                wrong.append(page.relative_to(ROOT).as_posix())
    assert not wrong


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short_and_no_page_has_powers_of_ten():
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= SHORT
    for page in PAGES:
        assert not re.findall(r"\d[eE]\+\d", page.read_text(encoding="utf-8"))


def test_code_fits_beside_the_text_of_a_page():
    too_wide = [
        f"{page.name}: {line}"
        for page in PAGES
        for block in blocks(page, "python")
        for line in block.splitlines()
        if len(line) > WIDTH
    ]
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    too_wide += [
        f"{notebook.name}: {line}"
        for notebook in notebooks
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
        for line in "".join(cell["source"]).splitlines()
        if len(line) > WIDTH
    ]
    assert notebooks
    assert not too_wide
