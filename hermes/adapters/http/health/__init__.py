"""Health checks for process managers and load balancers; they need no token."""
