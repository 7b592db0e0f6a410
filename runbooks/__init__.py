"""What is done about it, safely, exactly once: pages, verbs, guards, journal and executor. See README.md."""
