"""The user that docs/operations.md gives to an application."""

from __future__ import annotations

from .servers import Server

# As docs/operations.md has it.
APP = "app on >secret ~limit:* -@all +@connection -@dangerous +rl.fixed +rl.sliding +rl.log +rl.bucket +rl.all +rl.peek"
ON_A_CLUSTER = "+cluster|slots +cluster|shards +cluster|nodes +cluster|info +command"


class Rights:
    """Gives them to the user, on one server or on all nodes."""

    def __init__(self, servers: list[Server]) -> None:
        self.clients = [server.client() for server in servers]
        self.give("reset", *APP.split()[1:], *(ON_A_CLUSTER.split() if len(servers) > 1 else ()))

    def give(self, *rules: str) -> None:
        for client in self.clients:
            client.execute_command("ACL", "SETUSER", "app", *rules)

    def close(self) -> None:
        for client in self.clients:
            client.execute_command("ACL", "DELUSER", "app")
            client.close()
