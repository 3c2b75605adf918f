"""Association of the fields of a tuple: joint shares, conditional shares and independence."""
