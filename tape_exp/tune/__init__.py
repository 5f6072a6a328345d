"""Search: equal budgets of trials for some models over a space of keys, blind to the test."""
