"""Use cases and loops: the order of reads, decisions and writes."""
