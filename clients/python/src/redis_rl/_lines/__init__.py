"""Connections of the package's own: how commands are sent, and when a connection or a server is given up."""
