"""`python -m farzi_hf` is the program `farzi`."""

from farzi_hf.cli import main

main()
