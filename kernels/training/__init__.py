"""What a training step does beside its layers: optimizers, losses, embeddings, positions."""
