"""The addresses and ports of a gateway. Nothing else, so that whoever only names them imports nothing."""

from __future__ import annotations

JAR_INTERFACE, GATEWAY_INTERFACE = "eth0", "gw0"
JAR_ADDRESS, GATEWAY_ADDRESS, BITS = "198.19.255.2", "198.19.255.1", 30
JAR_ADDRESS_6, GATEWAY_ADDRESS_6, BITS_6 = "fd62:656c:6c6a:1::2", "fd62:656c:6c6a:1::1", 64
PROXY_ADDRESS = "198.18.0.1"
"""Where the jar finds DNS and the proxy, for programs that are told about one. Like any other address it is local."""
HTTP_PROXY_PORT, SOCKS_PORT, DNS_PORT = 3128, 1080, 53
ALWAYS_HEARD = 80
"""A port on which somebody listens in every gateway."""
MOST_PORTS = 200
"""Listeners of a jar: they are handed on in one message, and each is a descriptor."""
