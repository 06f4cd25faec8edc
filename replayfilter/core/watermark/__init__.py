"""Low watermarks: rosters, what records carry, laggards, stages."""
