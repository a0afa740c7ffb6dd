"""The colours of the pictures: those of the dashboard, by what they mean there.

A test compares them with `style.css`. They are written again because a replay needs no guard's packages.
"""

IN_LOOP, HELDOUT, GAP, KL, LIMIT = "#b3530a", "#1d5fc4", "#6a3fa3", "#0b7268", "#c3262e"
MUTED = "#586271"
