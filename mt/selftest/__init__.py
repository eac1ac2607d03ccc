"""Proofs of what is promised, on the machine of whoever asks for them."""
