"""The ledger: every published number beside ours, whether it is inside its tolerance, and how to repeat it."""
