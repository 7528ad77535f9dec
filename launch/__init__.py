"""What one starts: the command line."""
