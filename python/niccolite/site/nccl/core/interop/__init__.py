"""Helpers for frameworks. They can be imported without the framework."""
