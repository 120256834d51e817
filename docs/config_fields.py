"""Writes `farzi_hf/distillation/fields.py`: the settings of `FarziConfig` as plain source, which
editors and the reference can read. Run it after a variant has changed its settings.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from farzi_hf.common.settings import Setting
from farzi_hf.distillation.settings import SETTINGS

FIELDS = Path(__file__).parents[1] / "farzi_hf" / "distillation" / "fields.py"
_HEAD = '''"""The settings of ours in `FarziConfig`, each with its default and with what reads it.

`python docs/config_fields.py` writes this file from what the variants declare.
"""

from dataclasses import dataclass, field

from transformers import TrainingArguments


@dataclass(repr=False)  # the inherited repr hides tokens
class ConfigFields(TrainingArguments):
    """`transformers.TrainingArguments` with the settings of a distillation."""

'''


def source() -> str:
    """The file as it should be."""
    text = _HEAD + "\n".join(_field(name, setting) for name, setting in SETTINGS.items())
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FIELDS), "-"]
    done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True)
    return done.stdout


def _field(name: str, setting: Setting) -> str:
    """One field of the dataclass, and its docstring."""
    lines = [
        f"    {name}: {_type(setting.hint)} = field(",
        f"        {_default(setting.default)}, metadata={{{'help'!r}: {_literal(setting.help)}}}",
        "    )",
    ]
    words = f"{_capitalized(setting.help)}."
    if readers := setting.readers(name):
        words += f" Read with {', '.join(f'`{reader}`' for reader in readers)}."
    docstring = [part.rstrip() for part in _pieces(words, 90)]
    if len(docstring) == 1:
        lines.append(f'    """{docstring[0]}"""')
    else:
        first, *others = docstring
        lines += [f'    """{first}', *(f"    {part}" for part in others), '    """']
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:
    """The source of a type."""
    return hint.__name__ if isinstance(hint, type) and "[" not in str(hint) else str(hint)


def _default(value: Any) -> str:
    """The argument of `field` that says the default."""
    if isinstance(value, list):
        return f"default_factory=lambda: {value!r}"
    return f"default={value!r}"


def _capitalized(text: str) -> str:
    """`text` with a capital letter, but for the symbols of the paper."""
    is_symbol = not text[:2].isalpha() or not text[0].isascii()
    return text if is_symbol else text[0].upper() + text[1:]


def _literal(text: str) -> str:
    """The source of a text, in several literals if it is long."""
    pieces = [repr(piece) for piece in _pieces(text, 75)]
    return pieces[0] if len(pieces) == 1 else f"({' '.join(pieces)})"


def _pieces(text: str, width: int) -> list[str]:
    """`text` in pieces of at most so many characters that end after a blank."""
    pieces = [""]
    for word in text.split(" "):
        if len(pieces[-1]) + len(word) > width:
            pieces.append("")
        pieces[-1] += word + " "
    pieces[-1] = pieces[-1][:-1]
    return pieces


if __name__ == "__main__":
    FIELDS.write_text(source(), encoding="utf-8")
