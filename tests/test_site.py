"""The site builds, with every public name in it; the notebooks run as they stand."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import farzi_hf

ROOT = Path(__file__).parents[1]
ROOMS = sorted(
    path.stem for path in (ROOT / "docs" / "reference").glob("*.md") if path.stem != "index"
)
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    latest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[
        1
    ]
    project = re.search(
        r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M
    )[1]
    assert {citation, latest, project} == {farzi_hf.__version__}


def test_the_makefile_names_tests_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    core = re.search(r"^CORE := .*?\$\(addprefix tests/,(.*?)\)", makefile, re.M)[1].split()
    assert len(core) > 10
    assert [name for name in core if not (ROOT / "tests" / name).exists()] == []


def test_pages_name_files_and_tests_that_exist():
    """In what they print as code, but for blocks and for names with a part in capitals."""
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)", tests))
    lost = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for name in re.findall(
            r"`((?:farzi_hf|tests|recipes|docs)/[\w./-]+|test_(?:[a-z0-9]+_){2,}[a-z0-9]+)`", text
        ):
            is_there = (ROOT / name).exists() if "/" in name else name in known
            is_example = re.search("[A-Z]{4}", name) is not None
            if not is_there and not is_example:
                lost.append(f"{page.name}: {name}")
    assert lost == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_and_names_everything_public(tmp_path):
    """In strict mode a page that is in no navigation, or a link that leads nowhere, is an error."""
    pytest.importorskip(
        "mkdocstrings", reason="the site needs the extra docs: pip install -e .[docs]"
    )
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    scripts = [
        path.name for path in (tmp_path / "site").rglob("*") if path.suffix in (".py", ".pyc")
    ]
    assert scripts == []
    assert set(ROOMS) == {
        path.name for path in (ROOT / "farzi_hf").iterdir() if (path / "__init__.py").exists()
    } - {"cli", "common"} | {"metrics"}
    missing = []
    for room in ROOMS:
        page = (tmp_path / "site" / "reference" / room / "index.html").read_text(encoding="utf-8")
        for name in importlib.import_module(f"farzi_hf.{room}").__all__:
            # A function may have the name of its module.
            if not {f'id="farzi_hf.{room}.{name}"', f'id="farzi_hf.{room}.{name}.{name}"'} & set(
                re.findall(r'id="[\w.]+"', page)
            ):
                missing.append(f"{room}.{name}")
    assert not missing


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbclient = pytest.importorskip(
        "nbclient", reason="notebooks need the extra docs: pip install -e .[docs]"
    )
    pytest.importorskip("ipykernel", reason="notebooks need the extra docs: pip install -e .[docs]")
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    assert all(
        cell.outputs
        for cell in notebook.cells
        if cell.cell_type == "code" and "print(" in cell.source
    )
    nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


@pytest.fixture
def hook(monkeypatch):
    """What makes pages of files outside docs/."""
    pytest.importorskip("mkdocs", reason="the site needs the extra docs: pip install -e .[docs]")
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("hook", ROOT / "docs" / "site.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_short_code_of_a_text_is_not_broken(hook):
    """Browsers break --name behind its hyphens; long commands have to be broken somewhere."""
    html = "<p><code>--revision</code> <code>farzi distil orders.csv --minutes 10</code></p>"
    marked = hook.on_page_content(html, page=None, config=None, files=None)
    assert marked == html.replace("<code>--rev", '<code class="short">--rev')


def test_a_table_has_the_title_of_its_card(hook, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# A teacher\n", encoding="utf-8")
    table = tmp_path / "table.md"
    assert hook.titled("| a |", table) == "# A teacher: the table\n\n| a |"
    assert hook.titled("# Its own\n\n| a |", table) == "# Its own\n\n| a |"
    (tmp_path / "README.md").unlink()
    assert hook.titled("| a |", table).startswith(f"# {tmp_path.name.replace('_', ' ')}: the table")
