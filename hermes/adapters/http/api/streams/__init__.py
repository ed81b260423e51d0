"""Event streams: `state` (what a client keeps), `changes`, `channels`, `hub`, `events`."""
