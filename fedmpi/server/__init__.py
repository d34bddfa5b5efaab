"""What rank 0 does in a round: sample participants, run the server's part of a method, evaluate, record the round."""
