"""`python -m emq_cli` is `emq`."""

from emq_cli import main

main()
