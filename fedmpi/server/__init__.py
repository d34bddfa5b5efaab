"""What rank 0 does in a round: choose participants, cluster, aggregate, judge, count the cost."""
