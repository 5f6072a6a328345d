"""Claims of the paper and our verdicts, what its artifacts have beyond their YAML, and pages."""
