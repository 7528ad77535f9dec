"""Which network addresses are public.

A manifest from elsewhere must not make a build read from services of this machine or its network,
such as the metadata server of a cloud at 169.254.169.254.
"""

from __future__ import annotations

import ipaddress
import socket

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Addresses by which hosts without IPv4 reach IPv4 servers: the last 32 bits (RFC 6052)."""

_NOT_PUBLIC = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "168.63.129.16/32", "64:ff9b:1::/48", "3fff::/20"))
)
"""Networks that not every version of Python knows; clouds have services in the first two."""


def is_public(address: str) -> bool:
    """Returns whether an IP address is not private, loopback, link-local, multicast or reserved.

    An IPv6 address that contains an IPv4 address is judged by the latter.

    >>> is_public("192.0.43.7"), is_public("169.254.169.254"), is_public("::ffff:10.0.0.1")
    (True, False, False)
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        elif inner := found.ipv4_mapped or found.sixtofour:
            found = inner
        elif found.is_site_local:
            return False
    if any(found in network for network in _NOT_PUBLIC):
        return False
    return found.is_global and not (found.is_multicast or found.is_reserved)


def resolve(host: str, port: int, family: int) -> list[str]:
    """Returns the IP addresses of a host, each once.

    Args:
      host: a name or an address.
      port: of the service.
      family: as for `socket.getaddrinfo`.

    Raises:
      OSError: the name cannot be resolved.
      UnicodeError: it is not a name of a host.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, family, socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
