"""``python -m benchmarks``: both parts of `stock`."""

from benchmarks.stock import main

main()
