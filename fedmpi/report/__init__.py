"""What runs left, as tables and pictures."""
