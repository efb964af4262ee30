"""A network of your own, named by its import path: trained on one corpus, fine-tuned on a little of another."""
