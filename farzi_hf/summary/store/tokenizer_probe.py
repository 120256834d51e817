"""A program that tries a stranger's tokenizer.json: `python -I tokenizer_probe.py PACKAGES BYTES SECONDS < tokenizer.json`.

The tokenizers library is written in Rust. A bad file can make it abort its process, or take all memory and time. Here it does so in a process
of its own, which may take `BYTES` of memory and `SECONDS` on the processor. The program imports nothing of ours.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def main() -> None:
    """Ends with 0 if the tokenizer can be made and used, else with one line that says why not, or with a signal."""
    packages, memory, seconds = sys.argv[1:]
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        for kind, limit in (("RLIMIT_AS", memory), ("RLIMIT_CPU", seconds), ("RLIMIT_CORE", 0)):
            resource.setrlimit(getattr(resource, kind), (int(limit), int(limit)))
    sys.path.append(packages)  # where the caller has found the library: -I leaves out PYTHONPATH
    try:
        _use(sys.stdin.buffer.read().decode("utf-8"))
    except BaseException as error:  # Rust's panics are no Exception
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))


def _use(content: str) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(content)
    ids = sorted(tokenizer.get_vocab().values())
    for use in (
        lambda: tokenizer.decode(ids, skip_special_tokens=False),
        lambda: tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False),
        lambda: tokenizer.encode("A short text: 1, 2, 3."),
    ):
        with suppress(Exception):  # an error, such as a missing unknown token, is no crash
            use()


if __name__ == "__main__":
    main()
