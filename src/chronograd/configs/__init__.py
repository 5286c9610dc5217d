"""Transformers read from a Hugging Face `config.json`: their parameter tensors and work in closed form, without weights."""
