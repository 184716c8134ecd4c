"""A cache that lives: paged blocks, leases, admission, tenants, tiers, under any policy."""
