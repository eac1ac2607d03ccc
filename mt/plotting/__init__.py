"""Pictures of what a config or a run holds, by matplotlib (the extra `plot`)."""
