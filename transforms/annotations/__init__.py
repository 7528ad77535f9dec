"""Files of annotations: recognize, read, and match with images by name."""
