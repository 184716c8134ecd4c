"""A trace against a cache: the loop, curves and the optimum."""
