"""``python -m replayfilter``: the same as the ``replayfilter`` command."""

from replayfilter.service.cli import main

if __name__ == "__main__":
    main()
