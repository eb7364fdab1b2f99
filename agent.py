"""Start vgpu-agent from a source tree: `python agent.py run`."""

from agent.cli import main

raise SystemExit(main())
