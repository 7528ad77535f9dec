"""Elements, pure modules and the PTransforms made of them."""
