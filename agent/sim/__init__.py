"""The simulated node: stand-ins for kubelet, API server, scheduler, driver and runtime."""
