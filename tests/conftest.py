"""For all tests: none is judged by the speed of the machine."""

from hypothesis import settings

import agent  # noqa: F401 - before anything imports gRPC, which it sets up

settings.register_profile("house", deadline=None)
settings.load_profile("house")
