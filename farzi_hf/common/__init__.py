"""What all rooms share and none of them is: files, text, checks and settings.

This room imports nothing of ours. The engine does not use it, because it is imported with torch
alone.
"""

from farzi_hf.common.checks import check_different, check_size, did_you_mean
from farzi_hf.common.files import exclusive, is_taken, replace_file
from farzi_hf.common.messages import escaped_messages
from farzi_hf.common.settings import setting
from farzi_hf.common.text import reason, terminal_text

__all__ = [
    "check_different",
    "check_size",
    "did_you_mean",
    "escaped_messages",
    "exclusive",
    "is_taken",
    "reason",
    "replace_file",
    "setting",
    "terminal_text",
]
