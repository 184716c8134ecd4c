"""Who is admitted first, and who is preempted: one file an order."""
