"""What tokens cost, in dollars and joules, and against which latency."""
