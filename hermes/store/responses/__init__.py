"""Responses to the requests of API clients."""
