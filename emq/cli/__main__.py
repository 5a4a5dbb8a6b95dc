"""`python -m emq.cli` is `emq`."""

from emq.cli import main

main()
