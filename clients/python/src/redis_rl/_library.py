"""redis-py, or valkey-py where only that is installed: the package makes clients and errors of its own with it.

valkey-py has the names Redis, RedisCluster and RedisError too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis
else:
    try:
        import redis
    except ImportError:
        try:
            import valkey as redis
        except ImportError:
            raise ImportError(
                "redis-rl needs redis-py or valkey-py: pip install redis-rl[redis] or redis-rl[valkey]"
            ) from None

__all__ = ["redis"]
