"""For all tests: none is judged by the speed of the machine."""

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
