"""The store on PostgreSQL, with psycopg 3, which is imported nowhere else."""

from __future__ import annotations
