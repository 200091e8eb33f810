"""Builds the site: pages from the Markdown files and from the objects of heedful, then Sphinx, then the checks."""
