"""The paper's tables and figures: what to run, what to collect, how to draw."""
