"""Turns of API clients while they run: their events, and what clients have seen of them."""
