"""Ids of the special tokens, the same in every vocabulary."""

PAD = 0
UNK = 1
BOS = 2
EOS = 3
