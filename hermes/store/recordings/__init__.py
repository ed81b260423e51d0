"""Recorded turns: what is stored of them besides their messages."""
