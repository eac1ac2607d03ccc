"""Finished runs in the formats of other programs, each with proof that it translates alike."""
