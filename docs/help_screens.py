"""Writes `farzi_hf/cli/help.json`: the help screens that `farzi` shows without an import of torch."""

import json
import os

from farzi_hf.cli import SCREENS, screens

os.environ["COLUMNS"] = "100000"
SCREENS.write_text(json.dumps(screens(), indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
