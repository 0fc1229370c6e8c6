"""Before the service is imported."""

import os

os.environ["REDIS_URL"] = "memory:"
