"""``python -m replayfilter``: the same as the ``replayfilter`` command."""

from replayfilter.service.cli.main import main

if __name__ == "__main__":
    main()
