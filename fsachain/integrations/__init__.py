"""Losses in the shape that other toolkits call: one module for each toolkit, imported by whoever uses it.

None of them imports its toolkit; each page of docs/integrations has the lines that a user adds.
"""
