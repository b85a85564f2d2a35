"""``pandal top``: fleet, tenants against their quotas, refusals and scaling, in one terminal."""
