"""Everything that crosses ranks: the MPI world, rank 0's orders, exact sums, and handles on distributed rows."""
