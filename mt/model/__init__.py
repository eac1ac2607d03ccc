"""The Transformer: arithmetic alone, no file, tokenizer or loader."""
