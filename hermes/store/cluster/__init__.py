"""Several processes on one PostgreSQL database: nodes, leases, and who serves which conversation.

`placement` and `lease` are pure. `nodes`, `claims` and `roles` are SQL, as functions of a
`Transaction`. Safety rests on the fence alone (`claims.require_owner`): leases, clocks and hints
only decide when somebody acts.
"""
