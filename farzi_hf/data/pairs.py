"""Rows with a prompt and a completion, as TRL has them: two texts, or two parts of one chat."""

from collections.abc import Iterable, Mapping
from typing import Any

PROMPT = "prompt"
COMPLETION = "completion"


def are_pairs(columns: Iterable[str]) -> bool:
    """Whether rows with these columns are pairs."""
    return {PROMPT, COMPLETION} <= set(columns)


def before(prompt: str, completion: str) -> str:
    """The prompt as it stands before the completion: there is a line break between them, unless one
    of them has a blank there.
    """
    has_blank = not prompt or prompt[-1:].isspace() or completion[:1].isspace()
    return prompt if has_blank else f"{prompt}\n"


def whole(row: Mapping[str, Any]) -> Any:
    """A row as one text, or as one chat. None where a part is missing, and both parts as they are
    where they are neither.
    """
    prompt, completion = parts = [row.get(PROMPT), row.get(COMPLETION)]
    if None in parts:
        return None
    if isinstance(prompt, list) and isinstance(completion, list):
        return [*prompt, *completion]
    if isinstance(prompt, str) and isinstance(completion, str):
        return before(prompt, completion) + completion
    return parts
