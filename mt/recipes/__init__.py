"""Recipes: a new config, a reproduced recipe, and ablations."""
