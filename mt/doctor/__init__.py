"""Checks of corpora and tokenizers before training."""
