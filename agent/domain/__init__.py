"""Pure rules: no clock, no files, no threads, no logging."""
