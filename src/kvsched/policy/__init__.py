"""Who leaves first: one file a policy, and the registry that names them."""
