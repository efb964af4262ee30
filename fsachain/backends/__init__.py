"""The recursions on each device; `dispatch` is the only way in."""
