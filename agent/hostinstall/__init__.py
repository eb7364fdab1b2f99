"""Installing the program on a host as a service: a plan from what is there, and its execution."""
