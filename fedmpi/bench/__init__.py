"""`fedmpi bench`: speed as ratios measured in one run, on made-up samples of real shapes (only time counts)."""
