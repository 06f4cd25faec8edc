"""Low watermarks: the arithmetic of rosters, what records carry, who lags, stages."""
