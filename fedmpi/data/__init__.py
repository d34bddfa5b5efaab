"""Where the samples come from, who holds which, and the file that keeps the answer."""
