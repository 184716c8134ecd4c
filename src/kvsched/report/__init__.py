"""Answers to look at: terminal tables, and one self-contained HTML file."""
