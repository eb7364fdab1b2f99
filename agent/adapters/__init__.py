"""Everything that touches something outside this process: one file per thing."""
