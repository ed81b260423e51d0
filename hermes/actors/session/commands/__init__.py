"""Runs the commands of users."""
