"""What is wrong with a corpus or a tokenizer, told before training."""
