"""The four ids that mean the same in every vocabulary, fixed when a tokenizer is trained."""

PAD = 0
UNK = 1
BOS = 2
EOS = 3
