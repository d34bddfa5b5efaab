"""Many runs from one job file: expanded, started side by side, continued."""
