"""The Transformer: arithmetic only, without files, tokenizers or loaders."""
