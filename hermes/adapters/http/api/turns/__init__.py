"""Endpoints for recorded turns."""
