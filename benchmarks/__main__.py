"""``python -m benchmarks``: both parts of ``benchmarks.stock``."""

from benchmarks.stock import main

main()
