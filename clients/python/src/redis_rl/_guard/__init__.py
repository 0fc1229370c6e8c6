"""Decisions about requests: policies, what a request takes, and what happens while Redis is away."""
