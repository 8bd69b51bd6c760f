"""Recordings, and what the objectives over waves of sound have in common."""
