"""Questions about the IR: consumers, cost, findings."""
