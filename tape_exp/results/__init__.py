"""Records of finished runs: the store, what is measured, its statistics and tables."""
