"""Kinds of documents and their formats, through every room that handles documents."""
