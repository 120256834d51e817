"""A hook of mkdocs: the README, cards, logs, notebooks and help screens are pages too, and links
lead to them or to the repository.
"""

import io
import json
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the site is built without the package's requirements
from farzi_hf.cli import COMMANDS, main  # noqa: E402

PAGES = {
    "index.md": "README.md",
    **{name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "recipes/LOG.md")},
}
"""Pages of files outside docs/, with their paths in the repository."""
CARDS = {
    str(path.relative_to(ROOT)): path
    for path in sorted((ROOT / "model_cards").rglob("*"))
    if path.suffix in (".md", ".png")
}
SEARCH = {
    "model_cards": {"exclude": True},
    "recipes": {"exclude": True},
    "CHANGELOG.md": {"boost": 0.2},
    "reference": {"boost": 0.1},
}
"""How the search treats a folder or page: what explains comes before what records."""


def on_files(files, config):
    """Adds the pages that are not in docs/."""

    def add(uri, **what):
        files.append(File.generated(config, uri, **what))

    for uri, path in PAGES.items():
        add(uri, abs_src_path=str(ROOT / path))
    for uri, path in CARDS.items():
        add(uri, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV)
    add("model_cards/index.md", content=card_list())
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        add(f"notebooks/{path.stem}.md", content=as_markdown(path, config.repo_url))
    add("reference/commands.md", content=help_screens())
    return files


def on_page_markdown(markdown, page, config, files):
    """Turns links as GitHub follows them into links of the site, or into links to GitHub where the
    site has no such page.
    """
    page.meta["search"] = SEARCH.get(page.file.src_uri.partition("/")[0], {})
    if page.file.src_uri in CARDS:
        markdown = titled(markdown, CARDS[page.file.src_uri])
    here = PAGES.get(page.file.src_uri) or (
        page.file.src_uri if page.file.src_uri in CARDS else f"docs/{page.file.src_uri}"
    )
    pages = {path: uri for uri, path in PAGES.items()}

    def moved(match):
        link, _, anchor = match[1].partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(here), link))
        if not link or not (ROOT / path).exists():
            return match[0]
        uri = (
            "model_cards/index.md"
            if path == "model_cards"
            else path.removeprefix("docs/").replace(".ipynb", ".md")
        )
        uri = pages.get(path, uri)
        if files.get_file_from_path(uri):
            link = os.path.relpath(uri, os.path.dirname(page.file.src_uri) or ".")
        else:
            link = f"{config.repo_url}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
        return f"]({link}{'#' * bool(anchor)}{anchor})"

    if page.file.src_uri == "index.md":
        # Badges are images of another server, and lead to where the reader is.
        markdown = re.sub(r"^\[!\[.*\n\n", "", markdown, flags=re.M)
    # GitHub reads Markdown inside of HTML.
    return re.sub(r"\]\(([^):\s]+)\)", moved, markdown).replace(
        "<details>", '<details markdown="1">'
    )


SHORT_CODE = re.compile(r"<code>([^<\n]{1,32})</code>")


def on_page_content(html, page, config, files):
    """Marks short code in a text, which is not broken between two lines: `--name` was, behind its
    hyphens.
    """
    return SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def titled(markdown: str, path: Path) -> str:
    """The page with a heading, which its tab in the browser shows too. A table has none: it gets
    that of the card beside it, or the name of its folder.
    """
    if heading_of(markdown):
        return markdown
    card = path.parent / "README.md"
    heading = heading_of(card.read_text(encoding="utf-8")) if card.is_file() else None
    title = heading or path.parent.name.replace("_", " ")
    return f"# {title}: the table\n\n{markdown}"


def heading_of(markdown: str) -> str | None:
    """The first heading of a page; None without one."""
    heading = re.search(r"^#+ (.*)$", markdown, re.M)
    return heading[1] if heading else None


def card_list() -> str:
    """Each folder of `model_cards/` with the first heading of its card or table."""
    lines = [
        "# Cards",
        "",
        "Rendered cards of summaries that were distilled, and the tables of the paper's questions.",
        "",
    ]
    for uri, path in CARDS.items():
        if path.suffix == ".md":
            title = heading_of(path.read_text(encoding="utf-8")) or "the table"
            name = uri.removeprefix("model_cards/").rpartition("/")[0]
            link = uri.removeprefix("model_cards/")
            lines.append(f"- [{name}]({link}): {title}")
    return "\n".join(lines)


def as_markdown(path: Path, repository: str) -> str:
    """A notebook as a page: text, code and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                parts.append(
                    "![Figure of the cell"
                    f" above](data:image/png;base64,{''.join(data['image/png']).strip()})"
                )
            elif text := "".join(output.get("text", data.get("text/plain", []))).rstrip():
                parts.append(f"```text\n{text}\n```")
    parts.append(
        f"[This notebook in the repository]({repository}/blob/main/{path.relative_to(ROOT)})"
    )
    return "\n\n".join(parts)


def help_screens() -> str:
    """What `farzi COMMAND --help` prints."""
    parts = ["# The command line", "`farzi distil --help_all` lists all settings too."]
    for name in COMMANDS:
        with redirect_stdout(io.StringIO()) as screen:
            main([name, "--help"])
        parts += [f"## farzi {name}", f"```text\n{screen.getvalue().rstrip()}\n```"]
    return "\n\n".join(parts)
