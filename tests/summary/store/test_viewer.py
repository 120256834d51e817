"""viewer.html: what it computes is what the summary says, and nothing in it is taken for markup."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from fuzzing import fuzzed
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_artefacts import WORDS, tiny, word_tokenizer

from farzi_hf.summary import FarziData
from farzi_hf.summary.store import writing
from farzi_hf.summary.store.writing import render_viewer

EVIL = [
    "</script><script>document.title='owned'</script>", "<img src=x onerror=alert(1)>", "<!--", "&amp;", "__SUMMARY__", "ü", '"\\',
]  # fmt: skip


class Elements(HTMLParser):
    """Counts tags and collects what refers to other files."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href")]


def page(farzi: FarziData, folder: Path) -> str:
    farzi.save_pretrained(folder)
    return (folder / "viewer.html").read_text(encoding="utf-8")


def numbers(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="summary">(.*?)</script>', html, re.S).group(1))


def with_vocabulary(vocabulary, **changes) -> FarziData:
    farzi = tiny(**changes)
    farzi.processing_class = vocabulary
    return farzi


@pytest.mark.parametrize("vocabulary", [word_tokenizer(), WORDS, None], ids=["tokenizer", "list", "none"])
def test_the_page_stands_alone_and_names_every_entry(tmp_path, vocabulary):
    html = page(with_vocabulary(vocabulary), tmp_path)
    elements = Elements()
    elements.feed(html)
    assert elements.references == []
    assert "http" not in html
    assert numbers(html)["tokens"] == ([f"[{i}]" for i in range(len(WORDS))] if vocabulary is None else WORDS)


def parts(html: str) -> tuple[list[str], dict]:
    """The tags of a page, and the data in it."""
    elements = Elements()
    elements.feed(html)
    return elements.tags, numbers(html)


@pytest.mark.fuzz
@fuzzed
@given(st.lists(st.sampled_from(EVIL) | st.text(st.characters()), min_size=len(WORDS), max_size=len(WORDS)))
@example(EVIL)
@example(["</SCRIPT >", "]]>", "<!--<script>", "\u2028", "\ud83d", "\x00", "\r"])
def test_any_vocabulary_comes_back_equal_and_is_never_markup(vocabulary):
    farzi = with_vocabulary(vocabulary)
    html = render_viewer(farzi.contents())
    tags, data = parts(html.encode().decode())
    assert data["tokens"] == vocabulary
    assert tags == parts(render_viewer(tiny().contents()))[0]
    assert "innerHTML" not in html


def run_javascript(html: str, program: str, folder: Path) -> dict:
    """What `program`, run by node behind the page's own script, gives for the page's numbers."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, so the page's script cannot be run")
    script = re.findall(r"<script>(.*?)</script>", html, re.S)[-1]
    (folder / "numbers.json").write_text(json.dumps(numbers(html)), encoding="utf-8")
    (folder / "page.js").write_text(
        f"{script}\nconst farzi = parse(require('fs').readFileSync('numbers.json', 'utf8'));\n"
        f"console.log(JSON.stringify((() => {{ {program} }})()));",
        encoding="utf-8",
    )
    run = subprocess.run([node, "page.js"], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_its_script_computes_the_distributions_entropies_and_orders(tmp_path):
    farzi = with_vocabulary(WORDS, tau=0.5, latent_dim=2)
    html = page(farzi, tmp_path)
    found = run_javascript(
        html,
        """const all = [];
        for (let i = 0; i < farzi.num_sequences; i++)
          for (let j = 0; j < farzi.sequence_length; j++) {
            const p = distribution(farzi, i, j);
            all.push({p: Array.from(p), top: likeliest(p, 3), best: argmax(p), entropy: farzi.entropyOf(i, j)});
          }
        return {all, sure: ordered(4, "sure", farzi.meanEntropy), unsure: ordered(4, "unsure", farzi.meanEntropy),
                index: ordered(4, "index", farzi.meanEntropy)};""",
        tmp_path,
    )
    soft = farzi(torch.arange(4)).detach()
    torch.testing.assert_close(torch.tensor([at["p"] for at in found["all"]]).view_as(soft), soft)
    decoded = [position for sequence in farzi.decode(3) for position in sequence]
    assert [[WORDS[v] for v in at["top"]] for at in found["all"]] == [position["tokens"] for position in decoded]
    assert [at["best"] for at in found["all"]] == [at["top"][0] for at in found["all"]]
    entropies = torch.tensor([position["entropy"] for position in decoded])
    torch.testing.assert_close(torch.tensor([at["entropy"] for at in found["all"]]), entropies)
    by_entropy = entropies.view(4, -1).mean(1).argsort().tolist()
    assert (found["sure"], found["unsure"], found["index"]) == (by_entropy, by_entropy[::-1], [0, 1, 2, 3])


BROWSE = Path(__file__).with_name("browse_viewer.mjs")


@pytest.mark.slow
def test_it_works_in_a_browser_from_a_file(tmp_path):
    """`FARZI_BROWSER_DIR` names a folder where `npm install puppeteer-core @sparticuz/chromium` was run."""
    folder = os.environ.get("FARZI_BROWSER_DIR")
    if not folder or not shutil.which("node"):
        pytest.skip(
            "no browser: npm install puppeteer-core @sparticuz/chromium somewhere, and set FARZI_BROWSER_DIR to it"
        )
    page(with_vocabulary(EVIL), tmp_path)
    program = Path(folder) / BROWSE.name  # imports are looked up beside the program
    shutil.copyfile(BROWSE, program)
    run = subprocess.run(
        ["node", program, str(tmp_path / "viewer.html"), str(tmp_path / "page.png")], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert seen["errors"] == []
    assert seen["title"] == "Farzi data [4×5]"
    assert (seen["sequences"], seen["positions"]) == (4, 5)
    decoded = with_vocabulary(EVIL).decode(7)
    assert seen["hovered"] == decoded[0][3]["tokens"]
    means = [sum(position["entropy"] for position in sequence) / 5 for sequence in decoded]
    assert seen["sorted"] == [f"Sequence {i}" for i in sorted(range(4), key=means.__getitem__)]
    assert seen["clicked"] == f"Sequence {sorted(range(4), key=means.__getitem__)[1]}"
    assert seen["keyed"] == f"{seen['clicked']}, position 1"
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_the_page_of_a_large_summary_holds_its_first_sequences(tmp_path, monkeypatch):
    farzi, few = with_vocabulary(WORDS), 2
    assert numbers(page(farzi, tmp_path))["num_sequences"] == farzi.config.num_sequences > few
    monkeypatch.setattr(writing, "SHOWN", few)
    data = numbers(page(farzi, tmp_path))
    assert (data["num_sequences"], data["all_sequences"]) == (few, farzi.config.num_sequences)
    held = np.frombuffer(base64.b64decode(data["latents"]), dtype="<f4").reshape(few, *farzi.latents.shape[1:])
    assert np.array_equal(held, farzi.latents[:few].detach().numpy())
    assert len(base64.b64decode(data["entropy"])) == 4 * few * farzi.config.sequence_length
